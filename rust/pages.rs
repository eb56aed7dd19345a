//! Pages that need not be resident: of files that were read once while a library was loaded, and of freed memory.

/// Gives back the pages of all mapped files that no one has written to; returns how many bytes were resident in them.
///
/// They are read again from the page cache when they are touched. Only private mappings of regular files are given
/// back: a device has no page cache to read again from (a GPU driver's `/dev/nvidiactl` is mapped read-only and
/// shared, and its next use after madvise is a SIGBUS). Mappings that can be written to, or hold a page of ours (a
/// relocated one, say), are left alone: giving those back would lose what was written.
#[cfg(target_os = "linux")]
pub fn release_file_pages() -> u64 {
    let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let mut released = 0;
    for mapping in untouched(&mappings) {
        if !is_regular_file(mapping.path) {
            continue;
        }
        // SAFETY: the mapping is a private one of a regular file, cannot be written to and holds no page that differs
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

/// By its path: the inode that a mapping tells is not the path's on an overlay file system. A deleted or renamed
/// file is not found, and is left alone.
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
    resident: u64,
    /// Whether its content may differ from the file's, is shared with others, or is of no file.
    ours: bool,
}

/// The mappings in a text like /proc/self/smaps whose pages can be given back.
#[cfg(any(target_os = "linux", test))]
fn untouched(mappings: &str) -> Vec<Mapping<'_>> {
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
    let file = words.nth(2)? != "0";
    let path = line.find('/').map_or("", |at| &line[at..]);
    let private = permissions.ends_with('p') && !permissions.contains('w');
    Some(Mapping { path, start, end, resident: 0, ours: !private || !file })
}

/// Gives back what was freed and the allocator has kept, also from the middle of its heap.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes the allocator's own locks; valid at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// How the allocator treats large blocks. With `keep` it cuts them from its heap, which it never gives back: no page is
/// faulted in twice, and gaps remain. Without, every block of 128 KiB or more is the system's: resident is what is in use.
pub fn keep_large_blocks(keep: bool) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets allocator parameters; valid at any time.
    unsafe {
        const LARGEST: libc::c_int = 1 << 30;
        // Where so large a threshold is refused, half of the largest heap is the most.
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
    fn only_clean_pages_of_files_are_given_back() {
        let found: Vec<_> = untouched(SMAPS).iter().map(|mapping| (mapping.path, mapping.resident)).collect();
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
        // SAFETY: a private mapping of a file that lives as long as it, unmapped at the end.
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
            libc::munmap(start, size);
        }
    }
}
