//! Text -> ids: the same splitter as in training, a cache of fixed size, exact merges on a miss.
//!
//! The result does not depend on the cache, the threads or how the text was divided among them: a text is divided only
//! between two pieces.

mod batch;
pub mod cache;
mod pieces;

use crate::error::{Error, Result, option_to};
use crate::pairs::NONE;
use crate::specials::{Part, Specials};
use crate::split::{LOOK_BACK, Pattern, floor};
pub use batch::{Batch, encode_batch};
use cache::Back;
pub use pieces::Bpe;
use pieces::Worker;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use unicode_normalization::char::canonical_combining_class;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// An id as it is written: two bytes if the vocabulary fits, else four.
pub trait Id: Copy + Send + Sync + Default + 'static {
    const NARROW: bool;
    fn from_u32(id: u32) -> Self;
    /// Appends them as they are on disk: little-endian.
    fn append_bytes(ids: &[Self], bytes: &mut Vec<u8>);
    fn spare(encoder: &Encoder) -> &Mutex<Vec<Vec<Self>>>;
}

macro_rules! impl_id {
    ($type:ty, $narrow:literal, $spare:ident) => {
        impl Id for $type {
            const NARROW: bool = $narrow;

            #[inline(always)]
            fn from_u32(id: u32) -> $type {
                id as $type
            }

            fn append_bytes(ids: &[$type], bytes: &mut Vec<u8>) {
                let start = bytes.len();
                bytes.resize(start + size_of_val(ids), 0);
                for (place, id) in bytes[start..].chunks_exact_mut(size_of::<$type>()).zip(ids) {
                    place.copy_from_slice(&id.to_le_bytes());
                }
            }

            fn spare(encoder: &Encoder) -> &Mutex<Vec<Vec<$type>>> {
                &encoder.$spare
            }
        }
    };
}

impl_id!(u16, true, spare_narrow);
impl_id!(u32, false, spare_wide);

pub enum Model {
    Bpe(Box<Bpe>),
    /// One id per character; unknown ones become `unknown`, or are an error without it.
    Characters {
        ids: Vec<u32>,
        unknown: Option<u32>,
    },
}

pub struct Encoder {
    model: Model,
    /// Tokens that are recognized in any text (added tokens that are not special), with their ids.
    added: Specials,
    added_ids: Vec<u32>,
    /// Whether every id fits into two bytes.
    narrow: bool,
    back: Back,
    /// Ids per 1024 bytes of text in the last large batch.
    density: AtomicUsize,
    workers: Mutex<Vec<Worker>>,
    /// Buffers of earlier batches, a bounded number: new ones would be zeroed page by page each time.
    spare_narrow: Mutex<Vec<Vec<u16>>>,
    spare_wide: Mutex<Vec<Vec<u32>>>,
}

impl Encoder {
    /// `cache_bytes` is the size of the cache that all threads share; each thread has 512 KB more.
    pub fn new(model: Model, added: &[(String, u32)], largest_id: u32, cache_bytes: usize) -> Result<Self> {
        let names: Vec<String> = added.iter().map(|(name, _)| name.clone()).collect();
        Ok(Encoder {
            model,
            added: Specials::new(&names)?,
            added_ids: added.iter().map(|&(_, id)| id).collect(),
            narrow: largest_id < 1 << 16,
            back: Back::new(cache_bytes),
            density: AtomicUsize::new(0),
            workers: Mutex::default(),
            spare_narrow: Mutex::default(),
            spare_wide: Mutex::default(),
        })
    }

    /// The capacity to reserve for the ids of a batch, estimated from the last one. Batches of similar size then
    /// reserve about the same, which the allocator still has from the last one: fresh pages cost time.
    fn expected(&self, bytes: usize) -> usize {
        const STEP: usize = 64 << 10;
        let likely = bytes / 1024 * self.density.load(Relaxed) * 9 / 8;
        likely.next_multiple_of(STEP).min(bytes)
    }

    fn learn_density(&self, ids: usize, bytes: usize) {
        if bytes >= 1 << 20 {
            self.density.store(ids * 1024 / bytes + 1, Relaxed);
        }
    }

    pub fn is_narrow(&self) -> bool {
        self.narrow
    }

    fn worker(&self, cap: usize) -> Worker {
        let mut worker = self.workers.lock().unwrap().pop().unwrap_or_else(Worker::new);
        worker.cap = cap;
        worker
    }

    fn return_worker(&self, mut worker: Worker) {
        worker.trim();
        self.workers.lock().unwrap().push(worker);
    }

    /// The normalized text, if the tokenizer normalizes and the text is not normalized yet.
    fn normalized(&self, text: &str) -> Option<String> {
        match &self.model {
            Model::Bpe(bpe) if bpe.nfc && is_nfc_quick(text.chars()) != IsNormalized::Yes => {
                Some(text.nfc().collect())
            }
            _ => None,
        }
    }

    /// Where `text`, of which more follows, can be divided; 0 if nowhere. See `Pattern::stable_prefix`.
    pub fn stable_prefix(&self, text: &str, specials: &Specials, cap: usize) -> usize {
        match &self.model {
            Model::Bpe(bpe) if bpe.nfc || !self.added.is_empty() => {
                match self.word_boundary(&bpe.pattern, text, specials) {
                    0 => self.other_boundary(bpe, text, specials, cap),
                    cut => cut,
                }
            }
            Model::Bpe(bpe) if !bpe.is_bytes() => specials.stable_prefix(&bpe.pattern, text, cap),
            _ => specials.stable_prefix(&Pattern::Whole, text, 64),
        }
    }

    /// A place that divides two pieces whatever is around it: after a letter, before a character that is neither a
    /// letter nor a mark (so that normalization does not join the two), and not inside an added or special token.
    fn word_boundary(&self, pattern: &Pattern, text: &str, specials: &Specials) -> usize {
        let mut end = text.len().saturating_sub(specials.longest().max(self.added.longest()));
        while end > 0 {
            match pattern.word_boundary(&text[..floor(text, end)]) {
                Some(cut) if specials.spans(text, cut) || self.added.spans(text, cut) => end = cut - 1,
                Some(cut) => return cut,
                // None as far as that looks; a little of it again, because a place is between two characters.
                None => end = end.saturating_sub(LOOK_BACK - 8),
            }
        }
        0
    }

    /// For text without letters: a place found by the pattern, if the text has no added or special tokens and is
    /// normalized.
    fn other_boundary(&self, bpe: &Bpe, text: &str, specials: &Specials, cap: usize) -> usize {
        let normal = !bpe.nfc || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        if !normal || !self.added.is_absent(text) || !specials.is_absent(text) {
            return 0;
        }
        let near = specials.longest().max(self.added.longest());
        let certain = floor(text, text.len().saturating_sub(near));
        let cut = bpe.pattern.stable_prefix(&text[..certain], cap);
        // In a text that is certainly normalized, such a character composes at most with what follows it.
        if text[cut..].starts_with(|next| canonical_combining_class(next) == 0) { cut } else { 0 }
    }

    /// Appends the ids of `text`; only `specials` (with their ids) are recognized as special tokens.
    fn encode_into<I: Id>(
        &self,
        worker: &mut Worker,
        text: &str,
        specials: &Specials,
        special_ids: &[u32],
        out: &mut Vec<I>,
    ) -> Result<()> {
        for part in specials.parts(text) {
            match part {
                Part::Text(part) => self.encode_ordinary(worker, part, out)?,
                Part::Special(n) => out.push(I::from_u32(special_ids[n])),
            }
        }
        Ok(())
    }

    fn encode_ordinary<I: Id>(&self, worker: &mut Worker, text: &str, out: &mut Vec<I>) -> Result<()> {
        for part in self.added.parts(text) {
            match part {
                Part::Text(part) => self.encode_plain(worker, part, out)?,
                Part::Special(n) => out.push(I::from_u32(self.added_ids[n])),
            }
        }
        Ok(())
    }

    fn encode_plain<I: Id>(&self, worker: &mut Worker, text: &str, out: &mut Vec<I>) -> Result<()> {
        match &self.model {
            Model::Bpe(bpe) => {
                let normalized = self.normalized(text);
                let text = normalized.as_deref().unwrap_or(text);
                worker.encode(bpe, &self.back, text, out)
            }
            Model::Characters { ids, unknown } => {
                out.reserve(text.len() / 2);
                for (at, character) in text.char_indices() {
                    let id = match ids.get(character as usize) {
                        Some(&id) if id != NONE => id,
                        _ => unknown.ok_or_else(|| unknown_character(text, at, character))?,
                    };
                    out.push(I::from_u32(id));
                }
                Ok(())
            }
        }
    }
}

fn unknown_character(text: &str, at: usize, character: char) -> Error {
    let before: String = text[..at].chars().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect();
    Error::Invalid(format!(
        "the character {character:?} (U+{:04X}, after {before:?}) is not in this tokenizer's vocabulary: \
         train the tokenizer on text that contains it, or with {}",
        character as u32,
        option_to("unknown", "unk")
    ))
}
