/* Sends its own process a signal at the n-th call that changes the disk. Loaded with LD_PRELOAD (forked.py).

   FILE_OPERATIONS names a file of slots, FILE_OPERATIONS_SLOT the slot to use: {calls so far, at which call, signal}. The
   slot is shared memory, so the calls of all processes that a command starts are counted together. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { int64_t calls, at, signal; } Slot;
static Slot *slots, *slot;

void use_slot(int number) { slot = slots ? slots + number : 0; }

__attribute__((constructor)) static void map_slots(void) {
    const char *name = getenv("FILE_OPERATIONS"), *number = getenv("FILE_OPERATIONS_SLOT");
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED) return;
    slots = found;
    if (number) use_slot(atoi(number));
}

static void called(void) {
    if (slot && __atomic_add_fetch(&slot->calls, 1, __ATOMIC_SEQ_CST) == slot->at) kill(getpid(), (int)slot->signal);
}

#define WRAP(name, parameters, arguments)                                   \
    int name parameters {                                                   \
        static int(*real) parameters;                                       \
        if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);       \
        called();                                                           \
        return real arguments;                                              \
    }

WRAP(rename, (const char *from, const char *to), (from, to))
WRAP(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(link, (const char *from, const char *to), (from, to))
WRAP(linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(symlink, (const char *from, const char *to), (from, to))
WRAP(unlink, (const char *path), (path))
WRAP(unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
WRAP(rmdir, (const char *path), (path))
WRAP(mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
WRAP(fsync, (int file), (file))
WRAP(fdatasync, (int file), (file))
WRAP(ftruncate64, (int file, off64_t size), (file, size))

#define WRAP_OPEN(name, parameters, arguments)                              \
    int name parameters {                                                   \
        static int(*real) parameters;                                       \
        mode_t mode = 0;                                                    \
        if (flags & (O_CREAT | O_TMPFILE)) {                                \
            va_list list;                                                   \
            va_start(list, flags);                                          \
            mode = va_arg(list, mode_t);                                    \
            va_end(list);                                                   \
        }                                                                   \
        if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);       \
        if (flags & (O_CREAT | O_TRUNC)) called();                          \
        return real arguments;                                              \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
WRAP_OPEN(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
