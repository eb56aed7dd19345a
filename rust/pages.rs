//! Pages that need not be resident: of files that were read once while a library was loaded, and of freed memory.

/// Gives back the pages of all mapped files that no one has written to; returns how many bytes were resident in them.
///
/// They are read again from the page cache when they are touched. Mappings that can be written to, or hold a page of
/// ours (a relocated one, say), are left alone: giving those back would lose what was written.
#[cfg(target_os = "linux")]
pub fn release_file_pages() -> u64 {
    let Ok(mappings) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let mut released = 0;
    for mapping in untouched(&mappings) {
        // SAFETY: the mapping is of a file, cannot be written to and holds no page that differs from the file, so its
        // content does not change.
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

#[cfg(any(target_os = "linux", test))]
#[derive(Debug, Default, PartialEq)]
struct Mapping {
    start: usize,
    end: usize,
    resident: u64,
    /// Whether its content may differ from the file's, or is of no file.
    ours: bool,
}

/// The mappings in a text like /proc/self/smaps whose pages can be given back.
#[cfg(any(target_os = "linux", test))]
fn untouched(mappings: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
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
fn header(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let file = words.nth(2)? != "0";
    Some(Mapping { start, end, resident: 0, ours: permissions.contains('w') || !file })
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
7f0000007000-7f0000008000 r--s 00000000 fe:00 45    /shared
Rss:                   4 kB
Private_Dirty:         0 kB
";

    #[test]
    fn only_clean_pages_of_files_are_given_back() {
        let found: Vec<_> =
            untouched(SMAPS).iter().map(|mapping| (mapping.start, mapping.resident)).collect();
        assert_eq!(found, [(0x7f0000000000, 8192), (0x7f0000007000, 4096)]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_mapped_file_reads_the_same_afterwards() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
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
