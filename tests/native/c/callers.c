/* What names that are not ours mean to their caller: two of these libraries and a program, all with the same function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#ifdef LIBRARY
const char *who(void)
{
    return TEXT(LIBRARY);
}

/* The next definition after this library's own. */
const char *LIBRARY(void)
{
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "who");
    return next ? next() : "nobody";
}
#else
const char *first(void);
const char *second(void);

const char *who(void)
{
    return "program";
}

int main(void)
{
    const char *(*any)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "who");
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "who");
    dlerror();
    int missing = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL && dlerror() != NULL;
    int unknown = dlsym(RTLD_DEFAULT, "no_such_name") == NULL && dlerror() != NULL;
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    int versioned = dlvsym(libc, "memcpy", "GLIBC_2.2.5") != dlvsym(libc, "memcpy", "GLIBC_2.14");
    printf("%s %s %s %s %d %d %d\n", any(), next(), first(), second(), missing, unknown, versioned);
    return 0;
}
#endif
