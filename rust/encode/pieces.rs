//! Pieces -> ids: through the cache, by merges on a miss.
//!
//! Every piece of up to 15 bytes takes the same few instructions: tables for pieces of one or two bytes were
//! tried and were slower, because the processor cannot foresee which way a piece goes; so was asking for a
//! group of cache lines ahead. Ids are written as a whole word, past the end of what counts, and the next
//! piece writes over the rest; the buffer has room for an id a byte and one word more, and no piece has more
//! ids than bytes.

use super::Id;
use super::cache::{Cache, LONG_PIECE, Packed};
use crate::bpe::{Rules, Scratch, apply};
use crate::error::{Error, Result};
use crate::pairs::NONE;
use crate::split::{Pattern, Sink};
use crate::table::Key;
use std::collections::HashMap;

pub struct Bpe {
    pub pattern: Pattern,
    /// Id of each byte; `NONE` where the vocabulary lacks it.
    bytes: [u32; 256],
    rules: Rules,
    /// Pieces that are tokens as a whole are that token, whatever the merges say (`ignore_merges`).
    whole: Option<HashMap<Box<[u8]>, u32>>,
    pub nfc: bool,
    /// Whether every id fits two bytes: then seven go into an entry of the cache.
    narrow: bool,
}

/// Ids a word holds past the last one that counts, at the most.
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
        Bpe { pattern, bytes, rules, whole, nfc, narrow }
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
                "this vocabulary has no token for the byte 0x{byte:02X}: it cannot encode every text"
            )));
        }
        apply::<false>(&self.rules, symbols, scratch);
        Ok(())
    }
}

/// What one thread keeps between texts.
pub struct Worker {
    cache: Cache,
    symbols: Vec<u32>,
    scratch: Scratch,
}

impl Worker {
    pub fn new(cache_bytes: usize) -> Self {
        Worker { cache: Cache::new(cache_bytes), symbols: Vec::new(), scratch: Scratch::default() }
    }

    /// Gives back what an unusually long piece took.
    pub fn trim(&mut self) {
        self.scratch.trim();
        self.symbols.clear();
        self.symbols.shrink_to(1 << 16);
    }

    /// Appends the ids of `text`, which begins and ends as a text of its own.
    pub fn encode<I: Id>(&mut self, bpe: &Bpe, text: &str, out: &mut Vec<I>) -> Result<()> {
        let bytes = text.as_bytes();
        out.reserve(bytes.len() + OVERHANG);
        let mut failed = Ok(());
        // SAFETY: within the capacity.
        let mut end = unsafe { out.as_mut_ptr().add(out.len()) };
        let writer = Writer { worker: self, bpe, bytes, end: &mut end, failed: &mut failed };
        bpe.pattern.split(text, usize::MAX, writer);
        // SAFETY: everything from the old length to `end` was written.
        unsafe {
            let length = end.offset_from(out.as_ptr());
            out.set_len(length as usize);
        }
        failed
    }

    /// The ids of a piece that the cache of short pieces does not have, into `symbols`.
    fn miss(&mut self, bpe: &Bpe, piece: &[u8]) -> Result<()> {
        if let Some(key) = Key::short(piece, 0, piece.len()) {
            bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
            if let Some(packed) = Packed::new(&self.symbols, bpe.narrow) {
                self.cache.put(&key, packed);
            }
        } else if piece.len() > LONG_PIECE {
            bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
        } else if let Some(ids) = self.cache.get_long(piece) {
            self.symbols.clear();
            self.symbols.extend_from_slice(ids);
        } else {
            bpe.merge(piece, &mut self.symbols, &mut self.scratch)?;
            self.cache.put_long(piece, &self.symbols);
        }
        Ok(())
    }
}

/// Writes the ids of piece after piece. There is room at `end` for an id for every byte of the text and `OVERHANG`
/// more, and no piece has more ids than bytes.
struct Writer<'a, I> {
    worker: &'a mut Worker,
    bpe: &'a Bpe,
    bytes: &'a [u8],
    end: &'a mut *mut I,
    failed: &'a mut Result<()>,
}

impl<I: Id> Sink for Writer<'_, I> {
    #[inline(always)]
    fn piece(&mut self, start: usize, stop: usize) {
        if let Some(key) = Key::short(self.bytes, start, stop)
            && let Some(packed) = self.worker.cache.get(&key)
        {
            // SAFETY: there is room, as said above.
            *self.end = unsafe { write(packed, self.bpe.narrow, *self.end) };
        } else {
            self.merge(start, stop);
        }
    }
}

impl<I: Id> Writer<'_, I> {
    #[cold]
    #[inline(never)]
    fn merge(&mut self, start: usize, stop: usize) {
        match self.worker.miss(self.bpe, &self.bytes[start..stop]) {
            Ok(()) => {
                for &id in &self.worker.symbols {
                    // SAFETY: there is room, as said above.
                    unsafe {
                        self.end.write(I::from_u32(id));
                        *self.end = self.end.add(1);
                    }
                }
            }
            Err(error) => *self.failed = Err(error),
        }
    }
}

/// # Safety
/// There is room for `OVERHANG` ids at `end`.
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
