/* dlsym and dlvsym as programs get them: reach.c's assembly asks here which names are ours. */
#ifndef EGPU_REACH_H
#define EGPU_REACH_H

#define EGPU_LOOKUP_DLSYM 0x10000
#define EGPU_LOOKUP_DLVSYM 0x10001

/* The dynamic linker's own functions, found in its symbol tables. */
extern void *(*egpu_real_dlsym)(void *handle, const char *name);
extern void *(*egpu_real_dlvsym)(void *handle, const char *name, const char *version);

/* Find them; 0 when they are nowhere. */
int egpu_reach(void);
/* Index of a name that this library answers, EGPU_LOOKUP_... for the look-up functions, -1 for any other. */
int egpu_lookup_index(const char *name);
void *egpu_dlsym_hooked(void *handle, const char *name, int index);
void *egpu_dlvsym_hooked(void *handle, const char *name, const char *version, int index);

#endif
