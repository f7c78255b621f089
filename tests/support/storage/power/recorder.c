/* A recorder of what a process does below one folder, for LD_PRELOAD.
 *
 * POWER_ROOT names the folder, POWER_RECORD the file that the record is appended to. A lock covers
 * a call and its entry: the entries are in the order in which the calls took effect. Another process
 * that locks the record file (flock) stops the recorded one between two calls. A sync is recorded
 * and not carried out, for the machine keeps its power. Bytes for a TCP client are recorded before
 * they are sent.
 *
 * An entry: u32 length of the rest, u8 kind, u64 number, u64 position, u32 length of the path,
 * path, data. record.py reads it. What the recorder cannot follow is an entry of kind '!'.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS_MAX 65536
#define REAL(name) ((__typeof__(&name))real(#name))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int record_fd = -1;
static unsigned char is_tracked[FDS_MAX];

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("POWER_RECORD"), *folder = getenv("POWER_ROOT");
    if (!path || !folder)
        return;
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        abort();
    record_fd = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 1000);
    if (record_fd < 0)
        record_fd = fd;
    else
        syscall(SYS_close, fd);
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
    int before = errno;
    while (flock(record_fd, LOCK_EX) && errno == EINTR) {
    }
    errno = before;
}

static void leave(void)
{
    int before = errno;
    flock(record_fd, LOCK_UN);
    errno = before;
    pthread_mutex_unlock(&lock);
}

/* Append an entry; the caller holds the lock. */
static void put(char kind, uint64_t number, uint64_t position, const char *path,
                const struct iovec *data, int parts, size_t data_length)
{
    int before = errno;
    uint32_t path_length = path ? strlen(path) : 0;
    size_t length = 1 + 8 + 8 + 4 + path_length + data_length;
    uint32_t rest = length;
    char *entry = malloc(4 + length), *end = entry;
    if (!entry)
        abort();
    memcpy(end, &rest, 4), end += 4;
    *end++ = kind;
    memcpy(end, &number, 8), end += 8;
    memcpy(end, &position, 8), end += 8;
    memcpy(end, &path_length, 4), end += 4;
    memcpy(end, path, path_length), end += path_length;
    for (int part = 0; part < parts && data_length; part++) {
        size_t some = data[part].iov_len < data_length ? data[part].iov_len : data_length;
        memcpy(end, data[part].iov_base, some), end += some;
        data_length -= some;
    }
    for (char *at = entry; at < end;) {
        ssize_t written = syscall(SYS_write, record_fd, at, end - at);
        if (written < 0 && errno != EINTR)
            abort();
        at += written > 0 ? written : 0;
    }
    free(entry);
    errno = before;
}

static void put_text(char kind, uint64_t number, const char *path, const char *text)
{
    struct iovec data = {(void *)text, strlen(text)};
    put(kind, number, 0, path, &data, 1, data.iov_len);
}

/* Set the absolute path of a name; return whether it is the root or below. */
static int resolve(int folder, const char *name, char *path)
{
    if (record_fd < 0 || !name)
        return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char at[PATH_MAX] = "", link[64];
        if (folder == AT_FDCWD) {
            if (!getcwd(at, sizeof at))
                return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t length = readlink(link, at, sizeof at - 1);
            if (length < 0)
                return 0;
            at[length] = 0;
        }
        if (snprintf(path, PATH_MAX, "%s/%s", at, name) >= PATH_MAX)
            return 0;
    }
    char *last = strrchr(path, '/'), parent[PATH_MAX];
    if (strstr(path, "/.") && last != path) { /* . and .. are for the system to resolve */
        *last = 0;
        if (!realpath(path, parent))
            return 0;
        char name_only[NAME_MAX + 1];
        snprintf(name_only, sizeof name_only, "%s", last + 1);
        if (snprintf(path, PATH_MAX, "%s/%s", parent, name_only) >= PATH_MAX)
            return 0;
    }
    int is_same = !strncmp(path, root, root_length);
    return is_same && (!path[root_length] || path[root_length] == '/');
}

static int is_file(int fd)
{
    return record_fd >= 0 && fd >= 0 && fd < FDS_MAX && is_tracked[fd];
}

static uint64_t number_of(int fd)
{
    struct stat status;
    return fstat(fd, &status) ? 0 : status.st_ino;
}

static int do_open(int folder, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    if (!resolve(folder, name, path))
        return syscall(SYS_openat, folder, name, flags, mode);
    enter();
    struct stat status;
    int was_there = !stat(path, &status);
    int fd = syscall(SYS_openat, folder, name, flags, mode);
    if (fd >= 0) {
        if (fd < FDS_MAX)
            is_tracked[fd] = 1;
        if (flags & (O_TMPFILE & ~O_DIRECTORY))
            put_text('!', 0, path, "O_TMPFILE");
        if (!was_there && flags & O_CREAT)
            put('C', number_of(fd), 0, path, 0, 0, 0);
        else if (was_there && flags & O_TRUNC)
            put('T', status.st_ino, 0, 0, 0, 0, 0);
    }
    leave();
    return fd;
}

#define MODE(flags, last)                                  \
    mode_t mode = 0;                                       \
    if ((flags) & O_CREAT || ((flags)&O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                      \
        va_start(rest, last);                              \
        mode = va_arg(rest, int);                          \
        va_end(rest);                                      \
    }

int open(const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(folder, name, flags, mode);
}

int openat64(int folder, const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(folder, name, flags, mode);
}

int creat(const char *name, mode_t mode)
{
    return do_open(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *name, mode_t mode) { return creat(name, mode); }

int close(int fd)
{
    if (fd == record_fd && fd >= 0)
        return 0;
    if (fd >= 0 && fd < FDS_MAX)
        is_tracked[fd] = 0;
    return syscall(SYS_close, fd);
}

static void duplicate(int from, int to)
{
    if (to >= 0 && to < FDS_MAX)
        is_tracked[to] = is_file(from);
}

int dup(int fd)
{
    int copy = REAL(dup)(fd);
    duplicate(fd, copy);
    return copy;
}

int dup2(int fd, int to)
{
    int copy = REAL(dup2)(fd, to);
    duplicate(fd, copy);
    return copy;
}

int dup3(int fd, int to, int flags)
{
    int copy = REAL(dup3)(fd, to, flags);
    duplicate(fd, copy);
    return copy;
}

int fcntl(int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int found = syscall(SYS_fcntl, fd, command, argument);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        duplicate(fd, found);
    return found;
}

int fcntl64(int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return fcntl(fd, command, argument);
}

/* Bytes */

static size_t length_of(const struct iovec *data, int parts)
{
    size_t length = 0;
    for (int part = 0; part < parts; part++)
        length += data[part].iov_len;
    return length;
}

/* Return the port of the client at the other end of a TCP connection, else 0. */
static int port_of(int fd)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    int before = errno, port = 0;
    if (record_fd >= 0 && !getpeername(fd, (struct sockaddr *)&peer, &length)) {
        if (peer.ss_family == AF_INET)
            port = ntohs(((struct sockaddr_in *)&peer)->sin_port);
        else if (peer.ss_family == AF_INET6)
            port = ntohs(((struct sockaddr_in6 *)&peer)->sin6_port);
    }
    errno = before;
    return port;
}

/* Write to a file at a position, or where the descriptor stands if that is -1. */
static ssize_t do_write(int fd, const struct iovec *data, int parts, off_t position, int flags)
{
    enter();
    struct stat status;
    int is_append = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND; /* Linux appends, wherever */
    off_t at = is_append && !fstat(fd, &status) ? status.st_size
               : position < 0                  ? lseek(fd, 0, SEEK_CUR)
                                               : position;
    ssize_t written = position < 0 ? syscall(SYS_writev, fd, data, parts)
                                   : syscall(SYS_pwritev2, fd, data, parts, position, 0, flags);
    if (written > 0)
        put('W', number_of(fd), at, 0, data, parts, written);
    leave();
    return written;
}

/* Send to a client. The record may name more bytes than the socket takes: 'n' gives them back. */
static ssize_t do_send(int fd, const struct msghdr *message, int flags)
{
    int port = port_of(fd);
    if (!port)
        return syscall(SYS_sendmsg, fd, message, flags);
    size_t length = length_of(message->msg_iov, message->msg_iovlen);
    enter();
    put('N', port, length, 0, 0, 0, 0);
    ssize_t sent = syscall(SYS_sendmsg, fd, message, flags);
    if (sent != (ssize_t)length)
        put('n', port, length - (sent > 0 ? sent : 0), 0, 0, 0, 0);
    leave();
    return sent;
}

ssize_t writev(int fd, const struct iovec *data, int parts)
{
    if (is_file(fd))
        return do_write(fd, data, parts, -1, 0);
    if (port_of(fd)) {
        struct msghdr message = {.msg_iov = (struct iovec *)data, .msg_iovlen = parts};
        return do_send(fd, &message, MSG_NOSIGNAL);
    }
    return syscall(SYS_writev, fd, data, parts);
}

ssize_t write(int fd, const void *bytes, size_t length)
{
    struct iovec data = {(void *)bytes, length};
    return is_file(fd) || port_of(fd) ? writev(fd, &data, 1) : syscall(SYS_write, fd, bytes, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return do_send(fd, message, flags);
}

ssize_t send(int fd, const void *bytes, size_t length, int flags)
{
    struct iovec data = {(void *)bytes, length};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    return do_send(fd, &message, flags);
}

ssize_t pwritev2(int fd, const struct iovec *data, int parts, off_t position, int flags)
{
    return is_file(fd) ? do_write(fd, data, parts, position, flags)
                       : syscall(SYS_pwritev2, fd, data, parts, position, 0, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *data, int parts, off64_t position, int flags)
{
    return pwritev2(fd, data, parts, position, flags);
}

ssize_t pwritev(int fd, const struct iovec *data, int parts, off_t position)
{
    return pwritev2(fd, data, parts, position, 0);
}

ssize_t pwritev64(int fd, const struct iovec *data, int parts, off64_t position)
{
    return pwritev2(fd, data, parts, position, 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t position)
{
    struct iovec data = {(void *)bytes, length};
    return pwritev2(fd, &data, 1, position, 0);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t position)
{
    return pwrite(fd, bytes, length, position);
}

/* Sizes */

int ftruncate(int fd, off_t size)
{
    if (!is_file(fd))
        return syscall(SYS_ftruncate, fd, size);
    enter();
    int failed = syscall(SYS_ftruncate, fd, size);
    if (!failed)
        put('T', number_of(fd), size, 0, 0, 0, 0);
    leave();
    return failed;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *name, off_t size)
{
    char path[PATH_MAX];
    struct stat status;
    if (!resolve(AT_FDCWD, name, path))
        return syscall(SYS_truncate, name, size);
    enter();
    int failed = syscall(SYS_truncate, name, size);
    if (!failed && !stat(path, &status))
        put('T', status.st_ino, size, 0, 0, 0, 0);
    leave();
    return failed;
}

int truncate64(const char *name, off64_t size) { return truncate(name, size); }

int fallocate(int fd, int mode, off_t position, off_t length)
{
    if (!is_file(fd))
        return syscall(SYS_fallocate, fd, mode, position, length);
    enter();
    int failed = syscall(SYS_fallocate, fd, mode, position, length);
    if (!failed) {
        if (mode)
            put_text('!', number_of(fd), 0, "fallocate with a mode");
        else
            put('A', number_of(fd), position + length, 0, 0, 0, 0);
    }
    leave();
    return failed;
}

int fallocate64(int fd, int mode, off64_t position, off64_t length)
{
    return fallocate(fd, mode, position, length);
}

int posix_fallocate(int fd, off_t position, off_t length)
{
    return is_file(fd) ? (fallocate(fd, 0, position, length) ? errno : 0)
                       : REAL(posix_fallocate)(fd, position, length);
}

int posix_fallocate64(int fd, off64_t position, off64_t length)
{
    return posix_fallocate(fd, position, length);
}

/* Syncs; sync_file_range is none. */

int fsync(int fd)
{
    if (!is_file(fd))
        return syscall(SYS_fsync, fd);
    enter();
    put('S', number_of(fd), 0, 0, 0, 0, 0);
    leave();
    return 0;
}

int fdatasync(int fd) { return is_file(fd) ? fsync(fd) : syscall(SYS_fdatasync, fd); }

/* Names */

static int do_mkdir(int folder, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    struct stat status;
    if (!resolve(folder, name, path))
        return syscall(SYS_mkdirat, folder, name, mode);
    enter();
    int failed = syscall(SYS_mkdirat, folder, name, mode);
    if (!failed && !stat(path, &status))
        put('D', status.st_ino, 0, path, 0, 0, 0);
    leave();
    return failed;
}

int mkdir(const char *name, mode_t mode) { return do_mkdir(AT_FDCWD, name, mode); }

int mkdirat(int folder, const char *name, mode_t mode) { return do_mkdir(folder, name, mode); }

static int do_unlink(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    if (!resolve(folder, name, path))
        return syscall(SYS_unlinkat, folder, name, flags);
    enter();
    int failed = syscall(SYS_unlinkat, folder, name, flags);
    if (!failed)
        put('U', 0, 0, path, 0, 0, 0);
    leave();
    return failed;
}

int unlink(const char *name) { return do_unlink(AT_FDCWD, name, 0); }

int unlinkat(int folder, const char *name, int flags) { return do_unlink(folder, name, flags); }

int rmdir(const char *name) { return do_unlink(AT_FDCWD, name, AT_REMOVEDIR); }

int remove(const char *name)
{
    struct stat status;
    int is_folder = !lstat(name, &status) && S_ISDIR(status.st_mode);
    return is_folder ? rmdir(name) : unlink(name);
}

static int do_rename(int from_folder, const char *from, int to_folder, const char *to,
                     unsigned flags)
{
    char path[PATH_MAX], target[PATH_MAX];
    int is_below = resolve(from_folder, from, path), ends_below = resolve(to_folder, to, target);
    if (!is_below && !ends_below)
        return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    enter();
    int failed = syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    if (!failed) {
        if (!is_below || !ends_below || flags & ~RENAME_NOREPLACE)
            put_text('!', 0, path, "a rename across the root, or with flags");
        else
            put_text('R', 0, path, target);
    }
    leave();
    return failed;
}

int rename(const char *from, const char *to)
{
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return do_rename(from_folder, from, to_folder, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    return do_rename(from_folder, from, to_folder, to, flags);
}

static int do_link(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    char path[PATH_MAX], target[PATH_MAX];
    int is_below = resolve(from_folder, from, path), ends_below = resolve(to_folder, to, target);
    if (!is_below && !ends_below)
        return syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    enter();
    int failed = syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    if (!failed && is_below && ends_below)
        put_text('L', 0, path, target);
    else if (!failed)
        put_text('!', 0, path, "a link across the root");
    leave();
    return failed;
}

int link(const char *from, const char *to) { return do_link(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    return do_link(from_folder, from, to_folder, to, flags);
}

int symlink(const char *text, const char *name)
{
    char path[PATH_MAX];
    if (resolve(AT_FDCWD, name, path)) {
        enter();
        put_text('!', 0, path, "a symbolic link");
        leave();
    }
    return syscall(SYS_symlinkat, text, AT_FDCWD, name);
}

/* Ways to write that are not followed: the record says so. */

static void refuse(int fd, const char *what)
{
    if (!is_file(fd))
        return;
    enter();
    put_text('!', number_of(fd), 0, what);
    leave();
}

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length,
                        unsigned flags)
{
    refuse(out, "copy_file_range");
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, length, flags);
}

ssize_t sendfile(int out, int in, off_t *position, size_t length)
{
    refuse(out, "sendfile");
    return syscall(SYS_sendfile, out, in, position, length);
}

ssize_t sendfile64(int out, int in, off64_t *position, size_t length)
{
    return sendfile(out, in, position, length);
}

ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t length, unsigned flags)
{
    refuse(out, "splice");
    return syscall(SYS_splice, in, in_at, out, out_at, length, flags);
}

/* SQLite's shared memory file is an index of its log, of no worth after a crash: not followed. */
static int is_shared_memory(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    return length > 4 && !memcmp(path + length - 4, "-shm", 4);
}

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t position)
{
    if (flags & MAP_SHARED && protection & PROT_WRITE && is_file(fd) && !is_shared_memory(fd))
        refuse(fd, "a writable map");
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, position);
}

void *mmap64(void *at, size_t length, int protection, int flags, int fd, off64_t position)
{
    return mmap(at, length, protection, flags, fd, position);
}

int syncfs(int fd)
{
    refuse(fd, "syncfs");
    return syscall(SYS_syncfs, fd);
}

void sync(void)
{
    if (record_fd >= 0) {
        enter();
        put_text('!', 0, 0, "sync");
        leave();
    }
    syscall(SYS_sync);
}
