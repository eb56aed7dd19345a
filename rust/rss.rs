//! Resident memory of this process, and how the allocator uses it.

/// Resident bytes now; 0 if the system does not report it.
#[cfg(target_os = "linux")]
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    // SAFETY: only a query.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

#[cfg(not(target_os = "linux"))]
pub fn resident() -> u64 {
    0
}

/// Makes the allocator return large blocks to the system immediately. Otherwise glibc raises the threshold for this
/// with every large block that is freed, and keeps blocks of up to 32 MB.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets an allocator parameter; valid at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// Asks for large pages for a block of memory; the system may ignore it.
pub fn prefer_large_pages<T>(start: *const T, length: usize) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        let first = (start as usize).next_multiple_of(LARGE);
        let end = (start as usize + length) / LARGE * LARGE;
        if first < end {
            // SAFETY: advice on pages that are completely inside the block; their content does not change.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, length);
}
