//! Pieces -> ids: from the cache, or by merging on a miss.
//!
//! Every piece of up to 15 bytes takes the same few instructions: separate tables for pieces of one or two bytes were
//! tried and were slower, because the CPU mispredicts the branches. Ids are written as a whole 128-bit word, past the
//! end of those that count, and the next piece overwrites the rest; the buffer has space for one id per byte and one
//! word more, and no piece has more ids than bytes.

use super::Id;
use super::cache::{Back, Front, LONG_PIECE, Packed};
use crate::bpe::{Rules, Scratch, apply_known};
use crate::error::{Error, Result};
use crate::pairs::NONE;
use crate::split::{Pattern, Sink};
use crate::table::{INLINE as SHORT_PIECE, Key};
use std::collections::HashMap;
use std::sync::Mutex;

pub struct Bpe {
    pub pattern: Pattern,
    /// The id of each byte; `NONE` if it is not in the vocabulary.
    bytes: [u32; 256],
    rules: Rules,
    /// The rank of each pair of bytes: half of the lookups of a new piece, without a search.
    byte_ranks: Box<[u32]>,
    /// A piece that is a token as a whole becomes that token, whatever the merges (`ignore_merges`).
    whole: Option<HashMap<Box<[u8]>, u32>>,
    pub nfc: bool,
    /// Whether every id fits into two bytes: then a cache entry has space for seven.
    narrow: bool,
    /// Locked while a giant piece is merged: its memory is needed only once, however many threads there are.
    giant: Mutex<()>,
}

/// A longer piece, in bytes, is a giant: no word is that long, but a text may have no place to split.
const GIANT: usize = 128 << 10;

/// The most ids that writing a whole word writes past the last one that counts.
const OVERHANG: usize = 8;

impl Bpe {
    pub fn new(
        pattern: Pattern,
        bytes: [u32; 256],
        rules: Rules,
        whole: Option<HashMap<Box<[u8]>, u32>>,
        nfc: bool,
    ) -> Self {
        let largest = bytes.iter().copied().filter(|&id| id != NONE).max().unwrap_or(0);
        let largest = largest.max(rules.largest_made());
        let largest = whole.iter().flat_map(|whole| whole.values()).fold(largest, |most, &id| most.max(id));
        let narrow = largest < 1 << 16;
        let byte_ranks = (0..1 << 16).map(|pair| rules.rank(bytes[pair >> 8], bytes[pair & 0xFF])).collect();
        Bpe { pattern, bytes, rules, byte_ranks, whole, nfc, narrow, giant: Mutex::default() }
    }

    /// Whether every byte is an id by itself, so that it does not matter where a text is cut.
    pub fn is_bytes(&self) -> bool {
        self.rules.is_empty() && self.whole.is_none()
    }

    /// The ids of one piece, into `symbols`.
    fn merge(&self, piece: &[u8], symbols: &mut Vec<u32>, scratch: &mut Scratch) -> Result<()> {
        symbols.clear();
        if let Some(&id) = self.whole.as_ref().and_then(|whole| whole.get(piece)) {
            symbols.push(id);
            return Ok(());
        }
        symbols.extend(piece.iter().map(|&byte| self.bytes[byte as usize]));
        if let Some(at) = symbols.iter().position(|&symbol| symbol == NONE) {
            let byte = piece[at];
            return Err(Error::Invalid(format!(
                "the vocabulary has no token for byte 0x{byte:02X}, so it cannot encode this text"
            )));
        }
        if self.rules.is_empty() {
            return Ok(()); // a byte tokenizer's piece is the whole text: do not allocate buffers to merge it
        }
        let rank = |at: usize| self.byte_ranks[usize::from(piece[at]) << 8 | usize::from(piece[at + 1])];
        apply_known(&self.rules, symbols, scratch, rank);
        Ok(())
    }
}

/// The state that one thread keeps between texts.
pub struct Worker {
    front: Box<Front>,
    symbols: Vec<u32>,
    scratch: Scratch,
    missing: Box<[Missing; MISSING]>,
    /// A longer piece is cut.
    pub cap: usize,
}

/// A piece that the front's first entry does not have. Several are collected, so that their cache misses in the back
/// overlap.
#[derive(Clone, Copy)]
struct Missing {
    key: Key,
    start: usize,
    stop: usize,
    /// How many ids of the row come before it.
    at: usize,
}

const MISSING: usize = 16;
/// Ids collected before they are appended.
const ROW: usize = 1024;

impl Worker {
    pub fn new() -> Self {
        let nowhere = Missing { key: Key::EMPTY, start: 0, stop: 0, at: 0 };
        Worker {
            front: Front::new(),
            symbols: Vec::new(),
            scratch: Scratch::default(),
            missing: Box::new([nowhere; MISSING]),
            cap: usize::MAX,
        }
    }

    /// Frees the buffers after an unusually long piece.
    pub fn trim(&mut self) {
        self.scratch.trim();
        self.symbols.clear();
        self.symbols.shrink_to(1 << 16);
    }

    /// Appends the ids of `text`.
    pub fn encode<I: Id>(&mut self, bpe: &Bpe, back: &Back, text: &str, out: &mut Vec<I>) -> Result<()> {
        let (bytes, cap) = (text.as_bytes(), self.cap);
        // No piece has more ids than bytes.
        out.reserve(bytes.len() + OVERHANG);
        let mut failed = Ok(());
        let mut row = Row { ids: [I::default(); ROW + OVERHANG], length: 0, missing: 0 };
        let writer = Writer { worker: self, bpe, back, bytes, row: &mut row, out, failed: &mut failed };
        bpe.pattern.split(text, cap, writer);
        failed?;
        self.append_row(bpe, back, bytes, &mut row, out)
    }

    /// Finds the missing pieces and appends the row with them.
    #[inline(never)]
    fn append_row<I: Id>(
        &mut self,
        bpe: &Bpe,
        back: &Back,
        bytes: &[u8],
        row: &mut Row<I>,
        out: &mut Vec<I>,
    ) -> Result<()> {
        let mut appended = 0;
        for n in 0..row.missing {
            let Missing { key, start, stop, at } = self.missing[n];
            out.extend_from_slice(&row.ids[appended..at]);
            appended = at;
            match self.find(bpe, back, &key, &bytes[start..stop])? {
                // SAFETY: `encode` reserved an id for every byte of the text and `OVERHANG` more.
                Some(packed) => unsafe {
                    let end = write(packed, bpe.narrow, out.as_mut_ptr().add(out.len()));
                    let length = end.offset_from(out.as_ptr());
                    out.set_len(length as usize);
                },
                None => out.extend(self.symbols.iter().map(|&id| I::from_u32(id))),
            }
        }
        out.extend_from_slice(&row.ids[appended..row.length]);
        (row.length, row.missing) = (0, 0);
        Ok(())
    }

    /// The ids of a piece; `None` if they are too many for an entry, then they are in `symbols`.
    fn find(&mut self, bpe: &Bpe, back: &Back, key: &Key, piece: &[u8]) -> Result<Option<Packed>> {
        if piece.len() > SHORT_PIECE {
            if piece.len() > GIANT {
                let _alone = bpe.giant.lock().unwrap();
                bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
                self.scratch.trim();
            } else if piece.len() > LONG_PIECE {
                bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
            } else if !back.get_long(piece, &mut self.symbols) {
                bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
                back.put_long(piece, &self.symbols);
            }
            return Ok(Packed::new(&self.symbols, bpe.narrow));
        }
        if let Some(packed) = self.front.get(key).or_else(|| self.front.get_second(key)) {
            return Ok(Some(packed));
        }
        if let Some(packed) = back.get(key) {
            self.front.put(key, packed);
            return Ok(Some(packed));
        }
        bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
        let packed = Packed::new(&self.symbols, bpe.narrow);
        if let Some(packed) = packed {
            self.front.put(key, packed);
            back.put(key, packed);
        }
        Ok(packed)
    }
}

/// The ids of pieces that were in the front, one after another.
struct Row<I> {
    ids: [I; ROW + OVERHANG],
    length: usize,
    missing: usize,
}

/// Collects pieces, and the ids of those that are in the front.
struct Writer<'a, I> {
    worker: &'a mut Worker,
    bpe: &'a Bpe,
    back: &'a Back,
    bytes: &'a [u8],
    row: &'a mut Row<I>,
    out: &'a mut Vec<I>,
    failed: &'a mut Result<()>,
}

impl<I: Id> Sink for Writer<'_, I> {
    #[inline(always)]
    fn piece(&mut self, start: usize, stop: usize) {
        let key = Key::short(self.bytes, start, stop).unwrap_or(Key::EMPTY);
        match self.worker.front.get(&key) {
            // SAFETY: the row is appended before it is longer than `ROW`, and has space for `OVERHANG` more ids.
            Some(packed) => unsafe {
                write(packed, self.bpe.narrow, self.row.ids.as_mut_ptr().add(self.row.length));
                self.row.length += packed.count();
                if self.row.length >= ROW {
                    self.append_row();
                }
            },
            None => {
                self.back.prefetch(&key);
                self.worker.missing[self.row.missing] = Missing { key, start, stop, at: self.row.length };
                self.row.missing += 1;
                if self.row.missing == MISSING {
                    self.append_row();
                }
            }
        }
    }
}

impl<I: Id> Writer<'_, I> {
    #[inline(never)]
    fn append_row(&mut self) {
        if self.failed.is_ok() {
            *self.failed = self.worker.append_row(self.bpe, self.back, self.bytes, self.row, self.out);
        }
        (self.row.length, self.row.missing) = (0, 0);
    }
}

/// # Safety
/// There must be space for `OVERHANG` ids at `end`.
#[inline(always)]
unsafe fn write<I: Id>(packed: Packed, narrow: bool, end: *mut I) -> *mut I {
    let count = packed.count();
    let mut all = packed.all();
    unsafe {
        if narrow && I::NARROW {
            end.cast::<u128>().write_unaligned(all);
        } else {
            let bits = if narrow { 16 } else { 24 };
            for n in 0..count {
                end.add(n).write(I::from_u32(all as u32 & ((1 << bits) - 1)));
                all >>= bits;
            }
        }
        end.add(count)
    }
}
