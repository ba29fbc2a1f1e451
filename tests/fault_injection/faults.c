/* Counts the operations on files under a folder. From the n-th on, the disk is full, or the process
   is killed before it. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long first, count;
static int killing;
static char tracked[65536];

void faults_begin(const char *path, long number, int kills) {
    snprintf(folder, sizeof folder, "%s", path);
    first = number, killing = kills, count = 0;
}

long faults_count(void) { return count; }

static int inside(int directory, const char *path) {
    char absolute[PATH_MAX] = "";
    if (!*folder || !path) return 0;
    if (path[0] != '/') {
        char link[64];
        if (directory == AT_FDCWD) {
            if (!getcwd(absolute, sizeof absolute)) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            ssize_t length = readlink(link, absolute, sizeof absolute - 1);
            if (length < 0) return 0;
            absolute[length] = 0;
        }
        strncat(absolute, "/", sizeof absolute - strlen(absolute) - 1);
    }
    strncat(absolute, path, sizeof absolute - strlen(absolute) - 1);
    return strncmp(absolute, folder, strlen(folder)) == 0;
}

static int fails(void) {
    count++;
    if (first <= 0 || count < first) return 0;
    if (killing) kill(getpid(), SIGKILL);
    errno = ENOSPC;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

static void track(int file, int yes) {
    if (file >= 0 && file < (int) sizeof tracked) tracked[file] = yes;
}

#define OPEN(name, parameters, directory, call)                                            \
    int name parameters {                                                                          \
        REAL(name);                                                                                \
        mode_t mode = 0;                                                                           \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                     \
            va_list rest;                                                                          \
            va_start(rest, flags);                                                                 \
            mode = va_arg(rest, mode_t);                                                           \
            va_end(rest);                                                                          \
        }                                                                                          \
        int writes = (flags & O_ACCMODE) != O_RDONLY && inside(directory, path);                   \
        if (writes && (flags & O_CREAT) && fails()) return -1;                                     \
        int file = call;                                                                           \
        track(file, writes);                                                                       \
        return file;                                                                               \
    }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD, real(path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, real(path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), at, real(at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), at, real(at, path, flags, mode))

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    if (file >= 0 && file < (int) sizeof tracked && tracked[file] && fails()) return -1;
    return real(file, data, size);
}

int fsync(int file) {
    REAL(fsync);
    if (file >= 0 && file < (int) sizeof tracked && tracked[file] && fails()) return -1;
    return real(file);
}

int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    if (file >= 0 && file < (int) sizeof tracked && tracked[file] && fails()) return -1;
    return real(file, size);
}

int close(int file) {
    REAL(close);
    track(file, 0);
    return real(file);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (inside(AT_FDCWD, path) && fails()) return -1;
    return real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    if (inside(AT_FDCWD, to) && fails()) return -1;
    return real(from, to);
}

/* Removing needs no space: a process may be killed before it, but it never fails. */
int unlink(const char *path) {
    REAL(unlink);
    if (killing && inside(AT_FDCWD, path)) fails();
    return real(path);
}

int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat);
    if (killing && inside(at, path)) fails();
    return real(at, path, flags);
}
