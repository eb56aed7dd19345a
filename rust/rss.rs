//! The memory this process holds, as the system counts it.

/// Resident bytes now; 0 where the system does not say.
#[cfg(target_os = "linux")]
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    // SAFETY: a plain query.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

#[cfg(not(target_os = "linux"))]
pub fn resident() -> u64 {
    0
}

/// Makes the allocator give large blocks straight back to the system. glibc otherwise raises the
/// size from which it does so with every large block freed, and keeps up to 32 MB tables for itself.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets an allocator parameter; valid at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// Gives back what the allocator holds free.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Asks for large pages under a block of memory; a wish, which the system may not grant.
pub fn prefer_large_pages<T>(start: *const T, length: usize) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        let first = (start as usize).next_multiple_of(LARGE);
        let end = (start as usize + length) / LARGE * LARGE;
        if first < end {
            // SAFETY: advice on pages that lie wholly inside the block; their content does not change.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, length);
}
