//! Pieces seen before -> their ids, in a fixed number of slots: full, it forgets, it never grows.
//!
//! Two entries share a cache line. The first is for pieces that have proven themselves: a newcomer goes to
//! the second, and a hit there swaps the two. Words of one occurrence fight over second entries only, so
//! text that never repeats cannot push the common words out.
//!
//! Pieces of up to 15 bytes take 32 bytes, key and ids together; up to 64 bytes take 128. Longer
//! ones are rare enough to be merged each time.

use crate::table::Key;
use xxhash_rust::xxh3::xxh3_64;

/// Ids of a short piece: seven of two bytes, or five of three, and their number.
pub const NARROW_IDS: usize = 7;
pub const WIDE_IDS: usize = 5;
pub const LONG_PIECE: usize = 64;
const LONG_IDS: usize = 14;

type Entry = [u64; 4];

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([Entry; 2]);

#[repr(C, align(64))]
#[derive(Clone)]
struct LongEntry {
    piece: [u8; LONG_PIECE],
    ids: [u32; LONG_IDS],
    length: u32,
    count: u32,
}

pub struct Cache {
    lines: Vec<Line>,
    long: Vec<LongEntry>,
}

/// Ids as they stand in an entry.
#[derive(Clone, Copy)]
pub struct Packed(pub u64, pub u64);

impl Packed {
    /// `None` when there are too many, or too large, for an entry.
    pub fn new(ids: &[u32], narrow: bool) -> Option<Packed> {
        let (most, bits) = if narrow { (NARROW_IDS, 16) } else { (WIDE_IDS, 24) };
        if ids.len() > most || ids.iter().any(|id| id >> bits != 0) {
            return None;
        }
        let all = ids.iter().rev().fold(0u128, |all, &id| all << bits | u128::from(id));
        let all = all | (ids.len() as u128) << 120;
        Some(Packed(all as u64, (all >> 64) as u64))
    }

    #[inline(always)]
    pub fn count(self) -> usize {
        (self.1 >> 56) as usize
    }

    #[inline(always)]
    pub fn all(self) -> u128 {
        u128::from(self.1) << 64 | u128::from(self.0)
    }
}

impl Cache {
    /// About `bytes`, three quarters of it for short pieces. Pages are touched as pieces come.
    pub fn new(bytes: usize) -> Self {
        let lines = (bytes / 4 * 3 / size_of::<Line>()).max(64);
        let long = (bytes / 4 / size_of::<LongEntry>()).max(16);
        Cache { lines: zeroed(lines), long: zeroed(long) }
    }

    #[inline(always)]
    fn line(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }

    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = self.lines.as_ptr().wrapping_add(self.line(hash));
            // SAFETY: a prefetch never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = hash;
    }

    #[inline(always)]
    pub fn get(&mut self, key: &Key) -> Option<Packed> {
        let (lo, hi) = key.words();
        let n = self.line(key.hash);
        let Line([first, second]) = &mut self.lines[n];
        if first[0] == lo && first[1] == hi {
            return Some(Packed(first[2], first[3]));
        }
        if second[0] == lo && second[1] == hi {
            std::mem::swap(first, second);
            return Some(Packed(first[2], first[3]));
        }
        None
    }

    pub fn put(&mut self, key: &Key, ids: Packed) {
        let (lo, hi) = key.words();
        let n = self.line(key.hash);
        let Line([first, second]) = &mut self.lines[n];
        let entry = if first[1] == 0 { first } else { second };
        *entry = [lo, hi, ids.0, ids.1];
    }

    #[inline]
    fn long_place(&self, piece: &[u8]) -> usize {
        ((u128::from(xxh3_64(piece)) * self.long.len() as u128) >> 64) as usize
    }

    #[inline]
    pub fn get_long(&self, piece: &[u8]) -> Option<&[u32]> {
        let entry = &self.long[self.long_place(piece)];
        let length = entry.length as usize;
        (length == piece.len() && &entry.piece[..length] == piece).then(|| &entry.ids[..entry.count as usize])
    }

    pub fn put_long(&mut self, piece: &[u8], ids: &[u32]) {
        if piece.len() <= LONG_PIECE && ids.len() <= LONG_IDS {
            let place = self.long_place(piece);
            let entry = &mut self.long[place];
            entry.piece[..piece.len()].copy_from_slice(piece);
            entry.ids[..ids.len()].copy_from_slice(ids);
            (entry.length, entry.count) = (piece.len() as u32, ids.len() as u32);
        }
    }
}

/// A vector of zeroed entries whose pages the system hands out as they are first written.
fn zeroed<T: Clone>(length: usize) -> Vec<T> {
    let layout = std::alloc::Layout::array::<T>(length).expect("far below the address space");
    // SAFETY: `Line` and `LongEntry` are plain integers, for which all zeroes is a value; the pointer
    // comes from the global allocator with the layout that the vector will free it by.
    unsafe {
        let pointer = std::alloc::alloc_zeroed(layout);
        if pointer.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Vec::from_raw_parts(pointer.cast(), length, length)
    }
}
