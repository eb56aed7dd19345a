//! Pieces seen before -> their ids, in a fixed number of entries: when full it evicts, it never grows.
//!
//! Each thread has a small *front* cache of its own, which stays in the CPU's cache and has the words that make up most
//! of any text. All threads share one *back* cache, so that a word is merged once and stored once. Two entries make a
//! cache line: a new one goes to the second, and a hit there swaps the two, so that text that never repeats cannot
//! evict the common words.
//!
//! Lines of the back are read and written under a lock that covers a few of them. A thread that finds it locked does
//! not wait, it skips the cache: merging again gives the same result.
//!
//! A piece of up to 15 bytes takes 32 bytes, key and ids together; one of up to 64 bytes takes 128. Longer pieces are
//! rare enough to be merged each time.

use crate::table::{Key, prefetch};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// The most ids of a short piece: seven of two bytes or five of three; their number takes one more byte.
const NARROW_IDS: usize = 7;
const WIDE_IDS: usize = 5;
pub const LONG_PIECE: usize = 64;
const LONG_IDS: usize = 14;

/// 64-bit words of a line of two entries, and of a long entry: key, ids (two per word), length and number of ids.
const LINE: usize = 8;
const LONG_ENTRY: usize = 16;
const LONG_KEY: usize = LONG_PIECE / 8;

/// Lines of the front: 512 KB.
const FRONT: usize = 8192;
const LOCKS: usize = 4096;

/// Ids as stored in an entry.
#[derive(Clone, Copy)]
pub struct Packed(pub u64, pub u64);

impl Packed {
    pub const NOTHING: Packed = Packed(0, 0);

    /// `None` if there are too many for an entry, or they are too large.
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

/// The entries of one thread.
#[repr(C, align(64))]
pub struct Front([[u64; LINE]; FRONT]);

impl Front {
    pub fn new() -> Box<Self> {
        Box::new(Front([[0; LINE]; FRONT]))
    }

    #[inline(always)]
    pub fn get(&self, key: &Key) -> Option<Packed> {
        let (lo, hi) = key.words();
        let line = &self.0[key.hash as usize % FRONT];
        (line[0] == lo && line[1] == hi).then_some(Packed(line[2], line[3]))
    }

    /// Checks the second entry, and swaps the two if it matches.
    pub fn get_second(&mut self, key: &Key) -> Option<Packed> {
        let (lo, hi) = key.words();
        let line = &mut self.0[key.hash as usize % FRONT];
        if line[4] != lo || line[5] != hi {
            return None;
        }
        let (first, second) = line.split_at_mut(4);
        first.swap_with_slice(second);
        Some(Packed(line[2], line[3]))
    }

    pub fn put(&mut self, key: &Key, ids: Packed) {
        let (lo, hi) = key.words();
        let line = &mut self.0[key.hash as usize % FRONT];
        let entry = if line[1] == 0 { &mut line[..4] } else { &mut line[4..] };
        entry.copy_from_slice(&[lo, hi, ids.0, ids.1]);
    }
}

/// The entries that all threads share.
pub struct Back {
    /// Lines begin at `first`, the first address aligned to a cache line: memory that the allocator aligns would be
    /// zeroed explicitly, and all of it be resident from the start.
    words: Vec<AtomicU64>,
    first: usize,
    lines: usize,
    long: Vec<AtomicU64>,
    locks: Vec<AtomicBool>,
}

impl Back {
    /// About `bytes`, three quarters of it for short pieces. Pages become resident as pieces are added.
    pub fn new(bytes: usize) -> Self {
        let lines = (bytes / 4 * 3 / (LINE * 8)).max(64);
        let long = (bytes / 4 / (LONG_ENTRY * 8)).max(16);
        let words = zeroed((lines + 1) * LINE);
        let first = words.as_ptr().align_offset(LINE * 8);
        let locks = (0..LOCKS).map(|_| AtomicBool::new(false)).collect();
        Back { words, first, lines, long: zeroed(long * LONG_ENTRY), locks }
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        self.first + ((u128::from(hash) * self.lines as u128) >> 64) as usize * LINE
    }

    #[inline(always)]
    pub fn prefetch(&self, key: &Key) {
        prefetch(self.words.as_ptr().wrapping_add(self.place(key.hash)));
    }

    /// Calls `work` with the words from `place` on, unless another thread has locked them.
    #[inline(always)]
    fn locked<const N: usize, T>(
        &self,
        words: &[AtomicU64],
        place: usize,
        work: impl FnOnce(&[AtomicU64; N]) -> T,
    ) -> Option<T> {
        let lock = &self.locks[place / N % LOCKS];
        if lock.swap(true, Ordering::Acquire) {
            return None;
        }
        let done = work(words[place..place + N].try_into().expect("N words"));
        lock.store(false, Ordering::Release);
        Some(done)
    }

    pub fn get(&self, key: &Key) -> Option<Packed> {
        let (lo, hi) = key.words();
        self.locked(&self.words, self.place(key.hash), |line: &[AtomicU64; LINE]| {
            let word = |n: usize| line[n].load(Ordering::Relaxed);
            if word(0) == lo && word(1) == hi {
                return Some(Packed(word(2), word(3)));
            }
            if word(4) != lo || word(5) != hi {
                return None;
            }
            for n in 0..4 {
                let first = line[n].swap(line[n + 4].load(Ordering::Relaxed), Ordering::Relaxed);
                line[n + 4].store(first, Ordering::Relaxed);
            }
            Some(Packed(word(2), word(3)))
        })?
    }

    pub fn put(&self, key: &Key, ids: Packed) {
        let (lo, hi) = key.words();
        self.locked(&self.words, self.place(key.hash), |line: &[AtomicU64; LINE]| {
            let entry = if line[1].load(Ordering::Relaxed) == 0 { &line[..4] } else { &line[4..] };
            for (word, value) in entry.iter().zip([lo, hi, ids.0, ids.1]) {
                word.store(value, Ordering::Relaxed);
            }
        });
    }

    fn long_place(&self, piece: &[u8]) -> usize {
        let entries = (self.long.len() / LONG_ENTRY) as u128;
        ((u128::from(xxh3_64(piece)) * entries) >> 64) as usize * LONG_ENTRY
    }

    /// The ids of a piece of 16 to 64 bytes, into `ids`.
    pub fn get_long(&self, piece: &[u8], ids: &mut Vec<u32>) -> bool {
        let key = long_key(piece);
        let found = self.locked(&self.long, self.long_place(piece), |entry: &[AtomicU64; LONG_ENTRY]| {
            let word = |n: usize| entry[n].load(Ordering::Relaxed);
            let lengths = word(LONG_ENTRY - 1);
            if lengths as u32 as usize != piece.len() || (0..LONG_KEY).any(|n| word(n) != key[n]) {
                return false;
            }
            ids.clear();
            ids.extend(
                (0..(lengths >> 32) as usize).map(|n| (word(LONG_KEY + n / 2) >> (n % 2 * 32)) as u32),
            );
            true
        });
        found.unwrap_or(false)
    }

    pub fn put_long(&self, piece: &[u8], ids: &[u32]) {
        if piece.len() > LONG_PIECE || ids.len() > LONG_IDS {
            return;
        }
        let key = long_key(piece);
        self.locked(&self.long, self.long_place(piece), |entry: &[AtomicU64; LONG_ENTRY]| {
            for (word, value) in entry.iter().zip(key) {
                word.store(value, Ordering::Relaxed);
            }
            for (word, pair) in entry[LONG_KEY..].iter().zip(ids.chunks(2)) {
                let second = pair.get(1).map_or(0, |&id| u64::from(id) << 32);
                word.store(u64::from(pair[0]) | second, Ordering::Relaxed);
            }
            let lengths = piece.len() as u64 | (ids.len() as u64) << 32;
            entry[LONG_ENTRY - 1].store(lengths, Ordering::Relaxed);
        });
    }
}

fn long_key(piece: &[u8]) -> [u64; LONG_KEY] {
    let mut padded = [0; LONG_PIECE];
    padded[..piece.len()].copy_from_slice(piece);
    std::array::from_fn(|n| u64::from_le_bytes(padded[n * 8..n * 8 + 8].try_into().unwrap()))
}

/// Zeroed words whose pages become resident when first written, as large pages if possible: the lines in use are
/// scattered, and with small pages most lookups would cost a page walk.
fn zeroed(length: usize) -> Vec<AtomicU64> {
    let words = vec![0u64; length];
    crate::rss::prefer_large_pages(words.as_ptr(), size_of_val(&words[..]));
    let mut words = std::mem::ManuallyDrop::new(words);
    // SAFETY: `AtomicU64` has the size, the alignment and the values of `u64`.
    unsafe { Vec::from_raw_parts(words.as_mut_ptr().cast(), words.len(), words.capacity()) }
}
