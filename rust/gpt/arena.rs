//! One piece of memory for everything that a model has, mapped once and returned at the end.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Every span begins at a multiple of it: a cache line.
pub const LINE: usize = 64;

/// Bytes `start..start + bytes` of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub bytes: usize,
}

impl Span {
    pub fn end(&self) -> usize {
        self.start + self.bytes
    }

    /// Some of its numbers.
    pub fn part<T>(&self, numbers: Range<usize>) -> Span {
        let part = Span {
            start: self.start + numbers.start * size_of::<T>(),
            bytes: numbers.len() * size_of::<T>(),
        };
        assert!(part.end() <= self.end());
        part
    }
}

/// Zero at first. A page that nobody has written takes no memory.
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may access which part of it is the caller's care, as `slice` says.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn new(bytes: usize) -> io::Result<Arena> {
        if bytes == 0 {
            return Ok(Arena { start: NonNull::dangling(), bytes });
        }
        // SAFETY: a new private mapping without a file.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Arena { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn address(&self, span: Span) -> usize {
        assert!(span.end() <= self.bytes);
        self.start.as_ptr() as usize + span.start
    }

    /// The first `count` numbers of a span.
    ///
    /// # Safety
    /// Nobody else accesses them as long as the slice is in use, and any bits are a `T`.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice<T>(&self, span: Span, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= span.bytes && span.end() <= self.bytes);
        assert!(span.start.is_multiple_of(align_of::<T>()));
        // SAFETY: within the mapping, which is aligned to pages; not shared, as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(span.start).cast(), count) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping of `new`, which nobody uses any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}
