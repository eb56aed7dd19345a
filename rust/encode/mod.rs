//! Text -> ids: the trainer's own splitter, a cache of fixed size, exact merges on a miss.
//!
//! Nothing here depends on the cache, the threads or how the text was divided among them: a text is
//! divided only where its pieces are divided anyway.

mod batch;
pub mod cache;
mod pieces;

use crate::error::{Error, Result, option_to};
use crate::pairs::NONE;
use crate::specials::{Part, Specials};
use crate::split::{Pattern, floor};
pub use batch::{Batch, encode_batch};
use cache::Back;
pub use pieces::Bpe;
use pieces::Worker;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// An id as it is written: two bytes where the vocabulary fits, else four.
pub trait Id: Copy + Send + Sync + Default + 'static {
    const NARROW: bool;
    fn from_u32(id: u32) -> Self;
    /// As they are on disk: little-endian.
    fn append_bytes(ids: &[Self], bytes: &mut Vec<u8>);
    fn spare(encoder: &Encoder) -> &Mutex<Vec<Vec<Self>>>;
}

impl Id for u16 {
    const NARROW: bool = true;
    #[inline(always)]
    fn from_u32(id: u32) -> u16 {
        id as u16
    }

    fn append_bytes(ids: &[u16], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + ids.len() * 2, 0);
        for (place, id) in bytes[start..].chunks_exact_mut(2).zip(ids) {
            place.copy_from_slice(&id.to_le_bytes());
        }
    }

    fn spare(encoder: &Encoder) -> &Mutex<Vec<Vec<u16>>> {
        &encoder.spare_narrow
    }
}

impl Id for u32 {
    const NARROW: bool = false;
    #[inline(always)]
    fn from_u32(id: u32) -> u32 {
        id
    }

    fn append_bytes(ids: &[u32], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + ids.len() * 4, 0);
        for (place, id) in bytes[start..].chunks_exact_mut(4).zip(ids) {
            place.copy_from_slice(&id.to_le_bytes());
        }
    }

    fn spare(encoder: &Encoder) -> &Mutex<Vec<Vec<u32>>> {
        &encoder.spare_wide
    }
}

pub enum Model {
    Bpe(Box<Bpe>),
    /// One id a character; the unknown ones become `unknown`, or stop the work.
    Characters {
        ids: Vec<u32>,
        unknown: Option<u32>,
    },
}

pub struct Encoder {
    model: Model,
    /// Tokens that are found in any text (added tokens that are not special), with their ids.
    added: Specials,
    added_ids: Vec<u32>,
    /// Whether every id fits two bytes.
    narrow: bool,
    back: Back,
    /// Ids for 1024 bytes of text, of late.
    density: AtomicUsize,
    workers: Mutex<Vec<Worker>>,
    /// Buffers of earlier batches, a bounded number: fresh ones would be zeroed page by page each time.
    spare_narrow: Mutex<Vec<Vec<u16>>>,
    spare_wide: Mutex<Vec<Vec<u32>>>,
}

impl Encoder {
    /// `cache_bytes` is for what all threads share; each has 512 KB of its own besides.
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

    /// Room to set aside for the ids of so many bytes, going by the batches before. Batches of about one size then ask
    /// for about the same room, which the allocator still has from the last one: fresh pages cost time.
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

    fn worker(&self) -> Worker {
        self.workers.lock().unwrap().pop().unwrap_or_else(Worker::new)
    }

    fn give_back(&self, mut worker: Worker) {
        worker.trim();
        self.workers.lock().unwrap().push(worker);
    }

    /// Normalised text, where the tokenizer normalises and the text is not so already.
    fn normalised(&self, text: &str) -> Option<String> {
        match &self.model {
            Model::Bpe(bpe) if bpe.nfc && is_nfc_quick(text.chars()) != IsNormalized::Yes => {
                Some(text.nfc().collect())
            }
            _ => None,
        }
    }

    /// Where `text`, that goes on, can be divided; 0 if nowhere. See `Pattern::stable_prefix`.
    pub fn stable_prefix(&self, text: &str, specials: &Specials, cap: usize) -> usize {
        match &self.model {
            Model::Bpe(bpe) if bpe.nfc || !self.added.is_empty() => {
                match self.word_boundary(&bpe.pattern, text, specials) {
                    0 => self.other_boundary(bpe, text, specials, cap),
                    cut => cut,
                }
            }
            Model::Bpe(bpe) => specials.stable_prefix(&bpe.pattern, text, cap),
            Model::Characters { .. } => specials.stable_prefix(&Pattern::Whole, text, 64),
        }
    }

    /// A place that is one whatever stands around it: behind a letter, before something that is neither a
    /// letter nor a mark (so normalisation does not join the two), and not inside a token found in text.
    fn word_boundary(&self, pattern: &Pattern, text: &str, specials: &Specials) -> usize {
        let mut end = text.len().saturating_sub(specials.longest().max(self.added.longest()));
        while end > 0 {
            match pattern.word_boundary(&text[..floor(text, end)]) {
                Some(cut) if specials.spans(text, cut) || self.added.spans(text, cut) => end = cut - 1,
                Some(cut) => return cut,
                None => return 0,
            }
        }
        0
    }

    /// For text without letters: a place that the pattern gives, where no token found in text is near and
    /// normalisation has nothing to do.
    fn other_boundary(&self, bpe: &Bpe, text: &str, specials: &Specials, cap: usize) -> usize {
        let normal = !bpe.nfc || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        if !normal || !self.added.is_absent(text) || !specials.is_absent(text) {
            return 0;
        }
        let near = specials.longest().max(self.added.longest());
        let certain = floor(text, text.len().saturating_sub(near));
        let cut = bpe.pattern.stable_prefix(&text[..certain], cap);
        // An ASCII character begins anew: nothing composes with what stands before it.
        if text[cut..].starts_with(|next: char| next.is_ascii()) { cut } else { 0 }
    }

    /// Appends the ids of `text`; `specials` (with their ids) are found in it, nothing else is special.
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
                let normalised = self.normalised(text);
                let text = normalised.as_deref().unwrap_or(text);
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
         train it on text that has it, or with {}",
        character as u32,
        option_to("unknown", "unk")
    ))
}
