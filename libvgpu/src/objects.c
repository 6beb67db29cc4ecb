#include "objects.h"

#include <elf.h>
#include <link.h>
#include <string.h>

struct query {
    const char *soname;
    uintptr_t address;
    struct egpu_object *out;
};

/* glibc relocates the pointers in a dynamic section in place, except where the section is read-only. */
static uintptr_t pointer(const struct dl_phdr_info *info, ElfW(Addr) value) {
    return value < info->dlpi_addr ? info->dlpi_addr + value : value;
}

static void extent(const struct dl_phdr_info *info, struct egpu_object *object) {
    object->base = info->dlpi_addr;
    object->low = UINTPTR_MAX;
    object->high = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        object->low = start < object->low ? start : object->low;
        object->high = start + segment->p_memsz > object->high ? start + segment->p_memsz : object->high;
    }
}

static const ElfW(Dyn) *dynamic_of(const struct dl_phdr_info *info) {
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

static int describe(const struct dl_phdr_info *info, struct egpu_object *object) {
    const ElfW(Dyn) *dynamic = dynamic_of(info);
    ElfW(Xword) soname = 0;
    memset(object, 0, sizeof *object);
    if (dynamic == NULL)
        return 0;
    extent(info, object);
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t at = pointer(info, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB)
            object->strings = (const char *)at;
        else if (dynamic->d_tag == DT_SYMTAB)
            object->symbols = (const void *)at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            object->gnu_hash = (const uint32_t *)at;
        else if (dynamic->d_tag == DT_HASH)
            object->hash = (const uint32_t *)at;
        else if (dynamic->d_tag == DT_SONAME)
            soname = dynamic->d_un.d_val;
    }
    if (object->strings == NULL || object->symbols == NULL)
        return 0;
    object->soname = soname ? object->strings + soname : NULL;
    return 1;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    const struct query *query = data;
    (void)size;
    if (!describe(info, query->out))
        return 0;
    if (query->soname != NULL)
        return query->out->soname != NULL && strcmp(query->out->soname, query->soname) == 0;
    return query->address >= query->out->low && query->address < query->out->high;
}

int egpu_elf_object(const char *soname, struct egpu_object *out) {
    struct query query = {soname, 0, out};
    return dl_iterate_phdr(visit, &query) == 1;
}

int egpu_elf_object_at(const void *address, struct egpu_object *out) {
    struct query query = {NULL, (uintptr_t)address, out};
    return dl_iterate_phdr(visit, &query) == 1;
}

static int is_function(const ElfW(Sym) *symbol) {
    int type = ELF64_ST_TYPE(symbol->st_info);
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 && type == STT_FUNC;
}

static uint32_t gnu_hash(const char *name) {
    uint32_t h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

static const ElfW(Sym) *by_gnu_hash(const struct egpu_object *object, const char *name) {
    const uint32_t *table = object->gnu_hash;
    uint32_t buckets = table[0], first = table[1], words = table[2], shift = table[3], h = gnu_hash(name);
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)&table[4];
    const uint32_t *bucket = (const uint32_t *)&bloom[words], *chain = &bucket[buckets];
    const ElfW(Sym) *symbols = object->symbols;
    if (buckets == 0 || !(bloom[h / 64 % words] >> h % 64 & bloom[h / 64 % words] >> (h >> shift) % 64 & 1))
        return NULL;
    for (uint32_t i = bucket[h % buckets]; i >= first; i++) {
        if ((chain[i - first] | 1) == (h | 1) && strcmp(object->strings + symbols[i].st_name, name) == 0 &&
            is_function(&symbols[i]))
            return &symbols[i];
        if (chain[i - first] & 1)
            break;
    }
    return NULL;
}

/* How many symbols the object has: the end of the longest chain. */
static uint32_t symbol_count(const struct egpu_object *object) {
    if (object->hash != NULL)
        return object->hash[1];
    if (object->gnu_hash == NULL)
        return 0;
    const uint32_t *table = object->gnu_hash, *bucket = (const uint32_t *)((const ElfW(Addr) *)&table[4] + table[2]);
    const uint32_t *chain = &bucket[table[0]];
    uint32_t last = 0;
    for (uint32_t i = 0; i < table[0]; i++)
        last = bucket[i] > last ? bucket[i] : last;
    if (last < table[1])
        return table[1];
    while (!(chain[last - table[1]] & 1))
        last++;
    return last + 1;
}

void *egpu_elf_symbol(const struct egpu_object *object, const char *name) {
    const ElfW(Sym) *symbols = object->symbols, *found = NULL;
    if (object->gnu_hash != NULL)
        found = by_gnu_hash(object, name);
    else
        for (uint32_t i = 0, count = symbol_count(object); i < count && found == NULL; i++)
            if (is_function(&symbols[i]) && strcmp(object->strings + symbols[i].st_name, name) == 0)
                found = &symbols[i];
    return found ? (void *)(object->base + found->st_value) : NULL;
}

const char *egpu_elf_name(const struct egpu_object *object, const void *address, int (*prefer)(const char *name)) {
    const ElfW(Sym) *symbols = object->symbols;
    const char *any = NULL;
    for (uint32_t i = 0, count = symbol_count(object); i < count; i++) {
        if (!is_function(&symbols[i]) || object->base + symbols[i].st_value != (uintptr_t)address)
            continue;
        any = object->strings + symbols[i].st_name;
        if (prefer(any))
            return any;
    }
    return any;
}
