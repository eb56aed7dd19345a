//! The second reading: encodes what is kept.

use super::kept_ranges::KeptRanges;
use super::ledger::{Ledger, Origin};
use super::near::{NearSpill, Place};
use super::read::TaskFiles;
use super::scan::{Content, drops, is_blank};
use super::tokens::{Candidate, TokenWriter};
use super::{BufferSizes, Encoding, Job, Plan, Split};
use crate::atomic::commit_note;
use crate::clean::{Cleaner, Rule, Verdict};
use crate::crew::Progress;
use crate::dedup::{Drops, Unit};
use crate::encode::Id;
use crate::error::{Error, Result};
use serde_json::json;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

pub fn write<I: Id>(
    job: &Job,
    index: u32,
    encoding: &Encoding<'_>,
    sizes: &BufferSizes,
    threads: usize,
    progress: &Progress,
) -> Result<()> {
    let plan = &job.plan;
    let mut survivors = Survivors::load(job, index)?;
    let mut cleaner = Cleaner::new(plan.clean.clone());
    let files = TaskFiles::open(job, index, sizes, progress)?;
    let mut reader = files.read(progress);
    let mut output = Output::<I>::create(job, index, sizes)?;
    let mut batch = Texts::default();
    let mut content = Content::default();
    let mut kept_ranges = KeptRanges::open(job, index)?;
    let mut documents = 0;
    while let Some(document) = reader.next()? {
        let bytes = document.text.len();
        documents += u64::from(document.part == 0);
        output.ledger.add_read(bytes, document.part > 0);
        let origin = Origin { path: files.path(), document: document.document };
        let kept = kept_ranges.as_mut().map(|ranges| ranges.next_of(document.text)).transpose()?.flatten();
        let verdict = match kept {
            Some(text) => Verdict::Keep(text),
            None => cleaner.clean(document.text, &mut output.ledger.dropped),
        };
        match verdict {
            Verdict::Drop { rule, text } => output.ledger.add_dropped(rule, text.len(), text, &origin),
            Verdict::Keep(text) => {
                let hash = xxh3_128(text.as_bytes());
                content.add(hash);
                let grown = text.len() > plan.largest_document();
                // One thread at a time: the budget has memory for a single text that cleaning made longer.
                let _alone = grown.then(|| job.grown.lock().unwrap());
                if grown {
                    output.encode(&mut batch, encoding, threads, progress)?;
                    batch = Texts::default();
                }
                let start = batch.text.len();
                match survivors.append(text, &mut batch.text, &mut output.ledger)? {
                    Survived::Some => {
                        let file = document.file;
                        batch.documents.push(Text { start, hash: hash as u64, origin, file });
                    }
                    Survived::None { bytes } => {
                        output.ledger.add_dropped(Rule::Duplicate, bytes, text, &origin);
                    }
                }
                if grown {
                    output.encode(&mut batch, encoding, threads, progress)?;
                    batch = Texts::default();
                }
            }
        }
        if batch.text.len() >= sizes.block_bytes {
            output.encode(&mut batch, encoding, threads, progress)?;
        }
        reader.advance(bytes)?;
    }
    output.encode(&mut batch, encoding, threads, progress)?;
    reader.report()?;
    if matches!(survivors, Survivors::Of { content: scanned, .. } if scanned != content) {
        return Err(Error::Changed {
            path: files.path().as_ref().into(),
            what: "or an input before it changed after it was first read".into(),
        });
    }
    let counters = files.counters();
    output.ledger.add_empty(counters.documents.saturating_sub(documents));
    output.commit(index, &json!(counters))
}

/// Documents to be encoded together.
#[derive(Default)]
struct Texts {
    text: String,
    documents: Vec<Text>,
}

struct Text {
    start: usize,
    /// Of the document before duplicate lines were removed: it decides the split.
    hash: u64,
    origin: Origin,
    /// The number of its file among those of the task.
    file: u64,
}

impl Texts {
    fn range(&self, n: usize) -> std::ops::Range<usize> {
        let end = self.documents.get(n + 1).map_or(self.text.len(), |next| next.start);
        self.documents[n].start..end
    }
}

/// Drops duplicates. Units have the same numbers as when they were hashed.
enum Survivors {
    All,
    Of { unit: Unit, drops: Drops, next: u64, content: Content, max_blank_lines: usize },
}

enum Survived {
    Some,
    /// Nothing is left; `bytes` of it are not in the ledger yet.
    None {
        bytes: usize,
    },
}

impl Survivors {
    fn load(job: &Job, index: u32) -> Result<Survivors> {
        let Some(unit) = job.plan.unit else { return Ok(Survivors::All) };
        let (drops, content) = drops(job, index)?;
        // In normalized text, removing lines must not leave more than two blank lines in a row.
        let max_blank_lines = if job.plan.clean.normalize { 2 } else { usize::MAX };
        Ok(Survivors::Of { unit, drops, next: 0, content, max_blank_lines })
    }

    fn append(&mut self, text: &str, out: &mut String, ledger: &mut Ledger) -> Result<Survived> {
        let Survivors::Of { unit, drops, next, max_blank_lines, .. } = self else {
            out.push_str(text);
            return Ok(Survived::Some);
        };
        let mut is_dropped = || {
            *next += 1;
            drops.contains(*next - 1)
        };
        if *unit == Unit::Document {
            if is_dropped()? {
                return Ok(Survived::None { bytes: text.len() });
            }
            out.push_str(text);
            return Ok(Survived::Some);
        }
        let start = out.len();
        let (mut dropped, mut blank_lines) = (0, 0);
        for line in text.split('\n') {
            if is_blank(line) {
                // Blank lines at the start separate nothing.
                if out.len() == start || blank_lines == *max_blank_lines {
                    continue;
                }
                blank_lines += 1;
            } else if is_dropped()? {
                dropped += 1;
                continue;
            } else {
                blank_lines = 0;
            }
            out.push_str(line);
            out.push('\n');
        }
        if dropped == 0 {
            out.truncate(start);
            out.push_str(text);
            return Ok(Survived::Some);
        }
        let kept = out[start..].trim_end_matches('\n').len();
        out.truncate(start + kept);
        ledger.dropped.add(Rule::DuplicateLine, dropped, text.len() - kept);
        Ok(if kept > 0 { Survived::Some } else { Survived::None { bytes: 0 } })
    }
}

/// Ids that are converted to bytes at a time.
const WRITTEN: usize = 16 << 10;

/// The output of a task.
struct Output<'a, I> {
    job: &'a Job,
    ledger: Ledger,
    train: TokenWriter,
    val: TokenWriter,
    candidate: Option<Candidate>,
    last_val: Option<Candidate>,
    near: Option<NearSpill>,
    /// The number of documents by the binary logarithm of their length.
    lengths: [u64; 64],
    bytes: Vec<u8>,
    ids: std::marker::PhantomData<I>,
}

impl<'a, I: Id> Output<'a, I> {
    fn create(job: &'a Job, index: u32, sizes: &BufferSizes) -> Result<Self> {
        let near = job.plan.near.map(|near| NearSpill::create(job, index, near, sizes)).transpose()?;
        Ok(Output {
            job,
            ledger: Ledger::default(),
            train: TokenWriter::create(job, index, Split::Train)?,
            val: TokenWriter::create(job, index, Split::Val)?,
            candidate: None,
            last_val: None,
            near,
            lengths: [0; 64],
            bytes: Vec::new(),
            ids: std::marker::PhantomData,
        })
    }

    fn encode(
        &mut self,
        batch: &mut Texts,
        encoding: &Encoding<'_>,
        threads: usize,
        progress: &Progress,
    ) -> Result<()> {
        let texts: Vec<&str> = (0..batch.documents.len()).map(|n| &batch.text[batch.range(n)]).collect();
        let encoded = encoding.encode::<I>(&texts, threads, progress)?;
        let mut start = 0;
        for (n, &end) in encoded.ends.iter().enumerate() {
            self.document(texts[n], &batch.documents[n], &encoded.ids[start..end as usize])?;
            start = end as usize;
        }
        batch.documents.clear();
        batch.text.clear();
        Ok(())
    }

    fn document(&mut self, text: &str, of: &Text, ids: &[I]) -> Result<()> {
        let plan = &self.job.plan;
        let length = ids.len() as u64;
        let too_long = plan.max_tokens > 0 && length > plan.max_tokens;
        let dropped = if length < plan.min_tokens.max(1) {
            Some(Rule::TooFewTokens)
        } else {
            (too_long && !plan.split_long).then_some(Rule::TooManyTokens)
        };
        if let Some(rule) = dropped {
            self.ledger.add_dropped(rule, text.len(), text, &of.origin);
            return Ok(());
        }
        let split = split_of(plan, of.hash);
        let writer = match split {
            Split::Train => &mut self.train,
            Split::Val => &mut self.val,
        };
        let most = if too_long { plan.max_tokens as usize } else { ids.len() };
        let pieces = ids.len().div_ceil(most) as u64;
        let this = Candidate { hash: of.hash, document: writer.documents(), pieces };
        match split {
            Split::Train => self.candidate = self.candidate.into_iter().chain([this]).min(),
            Split::Val => self.last_val = self.last_val.into_iter().chain([this]).max(),
        }
        let mut pieces = 0;
        let mut digest = self.near.as_ref().map(|_| Xxh3::new());
        let mut push = |bytes: &[u8], writer: &mut TokenWriter| {
            if let Some(digest) = &mut digest {
                digest.update(bytes);
            }
            writer.push(bytes)
        };
        for piece in ids.chunks(most) {
            for some in piece.chunks(WRITTEN) {
                self.bytes.clear();
                I::append_bytes(some, &mut self.bytes);
                push(&self.bytes, writer)?;
            }
            if let Some(end) = plan.end_id {
                self.bytes.clear();
                I::append_bytes(&[I::from_u32(end)], &mut self.bytes);
                push(&self.bytes, writer)?;
            }
            writer.end_document()?;
            self.lengths[piece.len().ilog2() as usize] += 1;
            pieces += 1;
        }
        let end_ids = if plan.end_id.is_some() { pieces } else { 0 };
        let characters = text.chars().count();
        self.ledger.add_kept(text.len(), characters, pieces, end_ids);
        if let (Some(near), Some(digest)) = (&mut self.near, digest) {
            let place = Place {
                hash: of.hash,
                first: this.document as u32,
                pieces: pieces as u32,
                bytes: text.len() as u32,
                characters: characters as u32,
                file: of.file as u32,
                document: of.origin.document as u32,
                check: digest.digest() as u32,
            };
            near.push(text, place)?;
        }
        Ok(())
    }

    fn commit(self, index: u32, input: &serde_json::Value) -> Result<()> {
        let longest = self.lengths.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        let near_documents = self.near.map(NearSpill::commit).transpose()?;
        let mut note = json!({
            "train": self.train.commit()?,
            "val": self.val.commit()?,
            "candidate": self.candidate,
            "last_val": self.last_val,
            "ledger": self.ledger.to_json(),
            "examples": self.ledger.examples(),
            "lengths": self.lengths[..longest],
            "input": input,
        });
        if let Some(documents) = near_documents {
            note["near_documents"] = json!(documents);
        }
        commit_note(&self.job.note("tokens", index), note.to_string().as_bytes())
    }
}

pub fn split_of(plan: &Plan, hash: u64) -> Split {
    // 2^64 as a float; a fraction is below 1, so the product fits.
    let limit = (plan.val_fraction * 18_446_744_073_709_551_616.0) as u64;
    if hash < limit { Split::Val } else { Split::Train }
}
