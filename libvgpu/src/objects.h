/* Symbols of loaded objects, found in their own tables: the dynamic linker's answers are what is being hooked. */
#ifndef EGPU_OBJECTS_H
#define EGPU_OBJECTS_H

#include <stddef.h>
#include <stdint.h>

struct egpu_object {
    uintptr_t base, low, high; /* load bias, first and past-the-last address */
    const void *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
    const char *soname; /* NULL: none */
};

/* The loaded object of that soname; 0 when none is. */
int egpu_elf_object(const char *soname, struct egpu_object *out);
/* The loaded object that covers an address. */
int egpu_elf_object_at(const void *address, struct egpu_object *out);
/* A defined function of the object by name, NULL when it has none. */
void *egpu_elf_symbol(const struct egpu_object *object, const char *name);
/* Name of an exported function at exactly this address for which `prefer` answers yes, else any such, else NULL. */
const char *egpu_elf_name(const struct egpu_object *object, const void *address, int (*prefer)(const char *name));

#endif
