//! Pages that do not have to be resident: of files that were read once while a library was loaded, and of freed memory.

/// Releases the unmodified pages of all mapped files; returns how many bytes of them were resident.
///
/// They are read again from the page cache when they are accessed. Only private mappings of regular files are released:
/// a device has no page cache to read from again (a GPU driver's `/dev/nvidiactl` is mapped read-only and shared, and
/// its next use after madvise is a SIGBUS). Mappings that are writable, or have a modified page (for example a
/// relocated one), are skipped: releasing those would lose what was written.
#[cfg(target_os = "linux")]
pub fn release_file_pages() -> u64 {
    let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let mut released = 0;
    for mapping in unmodified(&mappings) {
        if !is_regular_file(mapping.path) {
            continue;
        }
        // SAFETY: the mapping is a private one of a regular file, is not writable and has no page that differs
        // from the file, so its content does not change.
        let refused = unsafe {
            libc::madvise(
                mapping.start as *mut libc::c_void,
                mapping.end - mapping.start,
                libc::MADV_DONTNEED,
            )
        };
        if refused == 0 {
            released += mapping.resident;
        }
    }
    released
}

#[cfg(not(target_os = "linux"))]
pub fn release_file_pages() -> u64 {
    0
}

/// Splits the large pages in which the system may cache a file: a library that was written or read at once is cached in
/// pages of up to 2 MiB, and executing one instruction makes a whole page resident. Of torch's 450 MB a training step
/// needs 23 MB in small pages but 103 MB in large ones, and which of the two it is changes while other programs run.
///
/// `named` selects the mapped files. What is not cached is not read, and pages that other processes use too stay as
/// they are. Releases the pages that it accesses, with the same precautions as `release_file_pages`.
#[cfg(target_os = "linux")]
pub fn split_file_pages(named: impl Fn(&str) -> bool) {
    const LARGE: usize = 2 << 20;
    const SMALL: usize = 64 << 10;
    let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for mapping in unmodified(&mappings) {
        if !named(mapping.path) || !is_regular_file(mapping.path) {
            continue;
        }
        let Ok(file) = std::fs::File::open(mapping.path) else { continue };
        let mut start = mapping.start;
        while start < mapping.end {
            let end = mapping.end.min((start / LARGE + 1) * LARGE);
            for at in (start..end).step_by(SMALL) {
                if is_cached(&file, mapping.offset + (at - mapping.start) as u64) {
                    // SAFETY: within a readable mapping of a file. Cold is a hint that does not change content; given
                    // for a part of a large page it makes the system split it.
                    unsafe {
                        std::ptr::read_volatile(at as *const u8);
                        libc::madvise(at as *mut libc::c_void, 4096, libc::MADV_COLD);
                    }
                }
            }
            // SAFETY: as in `release_file_pages`.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
            start = end;
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub fn split_file_pages(_named: impl Fn(&str) -> bool) {}

/// Whether a byte of a file is in the page cache.
#[cfg(target_os = "linux")]
fn is_cached(file: &std::fs::File, offset: u64) -> bool {
    use std::os::fd::AsRawFd;
    let mut byte = 0u8;
    let part = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
    // SAFETY: reads one byte into a local variable.
    unsafe {
        libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset as libc::off_t, libc::RWF_NOWAIT) == 1
    }
}

/// By path, because on an overlay file system the inode of a mapping is not that of the path. A deleted or renamed file
/// is not found, and is skipped.
#[cfg(target_os = "linux")]
fn is_regular_file(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file())
}

#[cfg(any(target_os = "linux", test))]
#[derive(Debug, Default, PartialEq)]
struct Mapping<'a> {
    path: &'a str,
    start: usize,
    end: usize,
    /// The offset of its first byte in the file.
    offset: u64,
    resident: u64,
    /// Whether its content may differ from the file, is shared, or does not come from a file.
    ours: bool,
}

/// The mappings in a text like /proc/self/smaps whose pages can be released.
#[cfg(any(target_os = "linux", test))]
fn unmodified(mappings: &str) -> Vec<Mapping<'_>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    for line in mappings.lines() {
        if let Some(mapping) = header(line) {
            found.push(mapping);
            continue;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        let Some(mapping) = found.last_mut() else { continue };
        let bytes = value.trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) << 10;
        match name {
            "Rss" => mapping.resident = bytes,
            "Private_Dirty" | "Shared_Dirty" | "Anonymous" | "Swap" | "Locked" if bytes > 0 => {
                mapping.ours = true
            }
            _ => {}
        }
    }
    found.retain(|mapping| !mapping.ours && mapping.resident > 0);
    found
}

/// `7f12a000-7f12b000 r-xp 00001000 fe:00 1234   /path`: the first line of a mapping.
#[cfg(any(target_os = "linux", test))]
fn header(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let file = words.nth(1)? != "0";
    let path = line.find('/').map_or("", |at| &line[at..]);
    let private = permissions.starts_with('r') && permissions.ends_with('p') && !permissions.contains('w');
    Some(Mapping { path, start, end, offset, resident: 0, ours: !private || !file })
}

/// Returns freed memory that the allocator has kept to the system, also from the middle of its heap.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: uses the allocator's own locks; valid at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// How the allocator treats large blocks. With `keep` they come from its heap, which it never returns: no page is
/// faulted in twice, but gaps stay resident. Without, every block of 128 KiB or more is mapped separately: only memory
/// in use is resident.
pub fn keep_large_blocks(keep: bool) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets allocator parameters; valid at any time.
    unsafe {
        const LARGEST: libc::c_int = 1 << 30;
        // If so large a threshold is refused, 32 MiB (half of the largest heap) is the most.
        if !keep {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        } else {
            if libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST) == 0 {
                libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
            }
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGEST);
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = keep;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000002000 r-xp 00000000 fe:00 42    /lib/one.so
Rss:                   8 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
7f0000002000-7f0000003000 r--p 00002000 fe:00 42    /lib/one.so
Rss:                   4 kB
Private_Dirty:         4 kB
Anonymous:             4 kB
7f0000003000-7f0000004000 rw-p 00003000 fe:00 42    /lib/one.so
Rss:                   4 kB
7f0000004000-7f0000005000 r--p 00000000 00:00 0
Rss:                   4 kB
7f0000005000-7f0000006000 r--p 00000000 fe:00 43    /a file: with a colon
Rss:                   0 kB
7f0000006000-7f0000007000 r--p 00000000 fe:00 44    /swapped
Rss:                   4 kB
Swap:                  4 kB
7f0000007000-7f0000008000 r--s 00000000 00:06 45    /dev/nvidiactl
Rss:                   4 kB
Private_Dirty:         0 kB
7f0000008000-7f0000009000 r--p 00000000 fe:00 46    /clean file
Rss:                   4 kB
Private_Dirty:         0 kB
";

    #[test]
    fn only_clean_pages_of_files_are_released() {
        let found: Vec<_> =
            unmodified(SMAPS).iter().map(|mapping| (mapping.path, mapping.resident)).collect();
        assert_eq!(found, [("/lib/one.so", 8192), ("/clean file", 4096)]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_device_is_not_a_regular_file() {
        assert!(!is_regular_file("/dev/zero"));
        assert!(!is_regular_file("/memfd:gone (deleted)"));
        assert!(is_regular_file("/proc/self/exe"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_mapped_file_reads_the_same_afterwards() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).unwrap();
        file.as_file().sync_all().unwrap();
        // SAFETY: a private mapping of a file that exists as long as the mapping, unmapped at the end.
        unsafe {
            let size = content.len();
            let start = libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            let mapped = std::slice::from_raw_parts(start as *const u8, size);
            assert_eq!(mapped, &content[..]);
            assert!(release_file_pages() >= size as u64);
            assert_eq!(mapped, &content[..]);
            split_file_pages(|path| path == file.path().to_str().unwrap());
            let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let left = unmodified(&mappings).into_iter().find(|mapping| mapping.start == start as usize);
            assert_eq!(left, None, "accessed pages are released");
            assert_eq!(mapped, &content[..]);
            libc::munmap(start, size);
        }
    }
}
