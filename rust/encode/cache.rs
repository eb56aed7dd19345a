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

/// Two entries of four words: the key's two, then the ids'.
type Line = [u64; 8];

/// Lines of the front, which stays in the processor's own cache: 256 KB hold the words that make up most
/// of any text. The back holds the rest and is asked only after the front.
const FRONT: usize = 4096;

#[repr(C)]
#[derive(Clone)]
struct LongEntry {
    piece: [u8; LONG_PIECE],
    ids: [u32; LONG_IDS],
    length: u32,
    count: u32,
}

pub struct Cache {
    /// Lines from `first` on, where the first cache line of the block begins: a block aligned by the allocator would
    /// be zeroed by hand, and all of it be resident from the start.
    words: Vec<u64>,
    first: usize,
    lines: usize,
    front: Box<Front>,
    long: Vec<LongEntry>,
}

#[repr(C, align(64))]
struct Front([Line; FRONT]);

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
        let words: Vec<u64> = zeroed((lines + 1) * 8);
        let first = words.as_ptr().align_offset(size_of::<Line>());
        Cache { words, first, lines, front: Box::new(Front([[0; 8]; FRONT])), long: zeroed(long) }
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        self.first + ((u128::from(hash) * self.lines as u128) >> 64) as usize * 8
    }

    #[inline(always)]
    fn line(&mut self, hash: u64) -> &mut Line {
        let place = self.place(hash);
        (&mut self.words[place..place + 8]).try_into().expect("eight words")
    }

    /// The ids of a piece, from the front if they are there.
    #[inline(always)]
    pub fn get(&mut self, key: &Key) -> Option<Packed> {
        let (lo, hi) = key.words();
        let line = &self.front.0[key.hash as usize % FRONT];
        if line[0] == lo && line[1] == hi {
            return Some(Packed(line[2], line[3]));
        }
        self.get_behind(key)
    }

    #[inline(never)]
    fn get_behind(&mut self, key: &Key) -> Option<Packed> {
        let (lo, hi) = key.words();
        let line = &mut self.front.0[key.hash as usize % FRONT];
        if let Some(packed) = find(line, lo, hi) {
            return Some(packed);
        }
        let packed = find(self.line(key.hash), lo, hi)?;
        insert(&mut self.front.0[key.hash as usize % FRONT], lo, hi, packed);
        Some(packed)
    }

    pub fn put(&mut self, key: &Key, ids: Packed) {
        let (lo, hi) = key.words();
        insert(self.line(key.hash), lo, hi, ids);
        insert(&mut self.front.0[key.hash as usize % FRONT], lo, hi, ids);
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

/// The ids of a key in a line; a hit in the second entry makes it the first.
#[inline(always)]
fn find(line: &mut Line, lo: u64, hi: u64) -> Option<Packed> {
    if line[0] == lo && line[1] == hi {
        return Some(Packed(line[2], line[3]));
    }
    if line[4] == lo && line[5] == hi {
        let (first, second) = line.split_at_mut(4);
        first.swap_with_slice(second);
        return Some(Packed(line[2], line[3]));
    }
    None
}

#[inline(always)]
fn insert(line: &mut Line, lo: u64, hi: u64, ids: Packed) {
    let entry = if line[1] == 0 { &mut line[..4] } else { &mut line[4..] };
    entry.copy_from_slice(&[lo, hi, ids.0, ids.1]);
}

/// A vector of zeroed entries whose pages the system hands out as they are first written, in large pages
/// where it can: the lines in use are scattered, and small pages would cost a page walk at most look-ups.
fn zeroed<T>(length: usize) -> Vec<T> {
    let layout = std::alloc::Layout::array::<T>(length).expect("far below the address space");
    // SAFETY: words and `LongEntry` are plain integers, for which all zeroes is a value; the pointer
    // comes from the global allocator with the layout that the vector will free it by.
    unsafe {
        let pointer = std::alloc::alloc_zeroed(layout);
        if pointer.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        crate::rss::prefer_large_pages(pointer, layout.size());
        Vec::from_raw_parts(pointer.cast(), length, length)
    }
}
