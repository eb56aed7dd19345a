//! Raw text -> shards of tokens, in tasks that each commit their own result.
//!
//! ```text
//!  scan    task i       read, clean, hash             -> work/scan     (with dedup, or to learn a vocabulary)
//!  settle  partition p  whose hash came before        -> work/drops
//!  write   task i       read, clean, leave out, encode -> work/tokens
//!  assemble             all tasks' tokens in order    -> out/{train,val}
//! ```
//!
//! A task is a plain function of the plan and an index. What it writes is noted when it is whole; a task that
//! has a note is not done again. Which tasks there are, and everything in their results, follows from the inputs and
//! the settings: not from threads, memory, or where a run was interrupted.

pub mod assemble;
mod known;
mod ledger;
pub mod pack;
mod read;
mod scan;
pub mod shard;
pub mod tokens;
mod write;

use crate::bpe::LONG_PIECE_BYTES;
use crate::clean;
use crate::crew::{Progress, Watch, crew};
use crate::dedup::{self, SettlePlan, Unit};
use crate::encode::{Batch, Encoder, Id, encode_batch};
use crate::error::{Error, Result};
use crate::source::Documents;
use crate::specials::Specials;
pub use scan::commit_cache;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
pub use tokens::Split;

/// Everything that the results follow from, but the inputs themselves: those are listed in `work/inputs`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub id: String,
    pub tasks: u32,
    pub partitions: u32,
    pub documents: String,
    pub separator: Option<String>,
    pub text_field: String,
    pub skip_broken: bool,
    pub max_document_bytes: usize,
    pub max_file_bytes: usize,
    pub clean: clean::Settings,
    /// What is compared to find duplicates.
    pub unit: Option<Unit>,
    pub cache: Option<PathBuf>,
    /// Of the cleaning, 32 hexadecimal digits: only hashes of texts cleaned alike compare.
    pub cache_fingerprint: String,
    /// Whether the characters of the text are gathered, for a vocabulary of them.
    pub characters: bool,
    pub val_fraction: f64,
    pub min_tokens: u64,
    /// 0: no limit.
    pub max_tokens: u64,
    /// Longer documents are divided, not dropped.
    pub split_long: bool,
    pub end_id: Option<u32>,
    /// Ids of four bytes instead of two.
    pub wide: bool,
    pub tokens_per_shard: u64,
    pub first_train_shard: u64,
    pub first_val_shard: u64,
    /// Whether the shards join others.
    pub appends: bool,
}

impl Plan {
    pub fn width(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    /// Bytes of the longest document, as it is read.
    pub fn largest_document(&self) -> usize {
        self.max_document_bytes.max(self.max_file_bytes)
    }

    pub fn pad_id(&self) -> u32 {
        self.end_id.unwrap_or(0)
    }

    pub fn first_shard(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.first_train_shard,
            Split::Val => self.first_val_shard,
        }
    }

    fn reading(&self) -> Documents {
        match (&*self.documents, &self.separator) {
            ("line", _) => Documents::Line,
            ("separator", Some(separator)) => Documents::Separator(separator.clone()),
            _ => Documents::File,
        }
    }
}

/// A plan and its folders.
pub struct Job {
    pub plan: Plan,
    pub work: PathBuf,
    pub out: PathBuf,
    /// Held by the thread that encodes a text which cleaning has made longer than documents are.
    grown: Mutex<()>,
}

impl Job {
    pub fn load(work: &Path, out: &Path) -> Result<Job> {
        let path = work.join("plan.json");
        let text = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
        let plan = serde_json::from_slice(&text)
            .map_err(|error| Error::Invalid(format!("{} cannot be read ({error})", path.display())))?;
        Ok(Job { plan, work: work.to_owned(), out: out.to_owned(), grown: Mutex::default() })
    }

    /// The note that says that a part of a stage is done.
    fn note(&self, stage: &str, index: u32) -> PathBuf {
        self.work.join(stage).join(format!("{index:06}.json"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Scan,
    Settle,
    Write,
}

impl Stage {
    pub fn named(name: &str) -> Option<Stage> {
        Some(match name {
            "scan" => Stage::Scan,
            "settle" => Stage::Settle,
            "write" => Stage::Write,
            _ => return None,
        })
    }

    fn folder(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Settle => "drops",
            Stage::Write => "tokens",
        }
    }

    fn parts(self, plan: &Plan) -> u32 {
        if self == Stage::Settle { plan.partitions } else { plan.tasks }
    }
}

/// What turns documents into ids.
pub enum Encoding<'a> {
    Native(&'a Encoder),
    /// Of families that the core does not know.
    Foreign(&'a (dyn Fn(&[&str]) -> Result<Batch<u32>> + Sync)),
}

impl Encoding<'_> {
    fn encode<I: Id>(&self, documents: &[&str], threads: usize, progress: &Progress) -> Result<Batch<I>> {
        match self {
            Encoding::Native(encoder) => {
                encode_batch(encoder, documents, &Specials::default(), &[], threads, &mut |_| {
                    progress.check()
                })
            }
            Encoding::Foreign(encode) => {
                let Batch { ids, ends } = encode(documents)?;
                Ok(Batch { ids: ids.into_iter().map(I::from_u32).collect(), ends })
            }
        }
    }
}

/// What one worker may hold.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Of text, as it is read and as it is encoded.
    pub block_bytes: usize,
    /// Of a decoder's window.
    pub window_bytes: u64,
    /// Of hashes that are not on disk yet, or of a partition's.
    pub hash_bytes: usize,
}

const LEAST_BLOCK: usize = 64 << 10;
const LARGEST_BLOCK: usize = 512 << 10;
const LEAST_HASHES: usize = 2 << 20;
const LARGEST_RECORDS: usize = 8 << 20;
/// Of the distinct hashes of a partition. One that has more, because its documents are far smaller than was reckoned
/// with, is gone through several times: memory does not grow with the input, though the budget might allow it.
const LARGEST_SET: usize = 40 << 20;
/// Bytes for each byte of a batch: the block, the batch, an id for every byte in three places, what merging takes.
const BLOCK_COPIES: usize = 14;
/// Copies of a document: as it was read, cleaned, what cleaning holds of it, and its ids in two places.
const DOCUMENT_COPIES: usize = 14;
/// In NFC a text may take three times the bytes: U+1D160 and U+FB2C become three characters.
const GROWTH: usize = 3;
/// Bytes for each byte of the one document that is encoded alone, beside those of any other: its text again and the
/// symbols of a piece; and what merging takes besides where it is all one piece.
const ALONE_COPIES: usize = 6;
const MERGED_COPIES: usize = 2 + LONG_PIECE_BYTES;

impl Room {
    /// The least that a worker can do with.
    pub fn least(plan: &Plan) -> usize {
        let document = plan.largest_document();
        DOCUMENT_COPIES * document + BLOCK_COPIES * LEAST_BLOCK + LEAST_HASHES
    }

    /// What all workers together need besides: for the one document at a time that is a single piece, or that cleaning
    /// has made longer. `merges` says whether the encoder does.
    pub fn shared(plan: &Plan, merges: bool) -> usize {
        let longest = plan.largest_document() * if plan.clean.normalise { GROWTH } else { 1 };
        let copies = if merges { MERGED_COPIES } else { ALONE_COPIES };
        (copies + if plan.wide { 2 } else { 0 }) * longest
    }

    /// `memory` divided among `threads`.
    pub fn new(plan: &Plan, memory: usize, threads: usize) -> Room {
        let share = memory.saturating_sub(Room::shared(plan, true)) / threads.max(1);
        let share = share.saturating_sub(Room::least(plan));
        Room {
            block_bytes: (LEAST_BLOCK + share / 4 / BLOCK_COPIES).min(LARGEST_BLOCK),
            window_bytes: (share as u64 / 4).clamp(8 << 20, 128 << 20),
            hash_bytes: LEAST_HASHES + share / 2,
        }
    }
}

/// Runs what is not yet done of a stage on all threads.
pub fn run_stage(
    job: &Job,
    stage: Stage,
    encoding: Option<&Encoding<'_>>,
    memory: usize,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let parts = stage.parts(&job.plan);
    let part = Part::new(job, stage, encoding, Room::new(&job.plan, memory, threads))?;
    let next = AtomicU32::new(0);
    crew(threads.min(parts as usize).max(1), progress, watch, |_| {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= parts {
                return Ok(());
            }
            progress.check()?;
            // Threads that have no part of their own help with the encoding of the others.
            let working = (parts - index).min(threads as u32).max(1) as usize;
            part.run(index, threads / working, progress)?;
        }
    })?;
    Ok(())
}

/// Any part of a stage: a plain function of the plan and an index.
pub struct Part<'a> {
    job: &'a Job,
    stage: Stage,
    encoding: Option<&'a Encoding<'a>>,
    room: Room,
    settling: Option<SettlePlan>,
}

impl<'a> Part<'a> {
    pub fn new(job: &'a Job, stage: Stage, encoding: Option<&'a Encoding<'a>>, room: Room) -> Result<Self> {
        let folder = job.work.join(stage.folder());
        std::fs::create_dir_all(&folder).map_err(|error| Error::write(&folder, error))?;
        let settling = match stage {
            Stage::Settle => Some(scan::settle_plan(job, &room)?),
            Stage::Scan | Stage::Write => None,
        };
        Ok(Part { job, stage, encoding, room, settling })
    }

    /// Does it, unless it is done already; `threads` may help.
    pub fn run(&self, index: u32, threads: usize, progress: &Progress) -> Result<()> {
        let Part { job, stage, encoding, room, settling } = self;
        if let Some(settling) = settling {
            if !dedup::drop_file(&settling.out, index).exists() {
                dedup::settle(index, settling, progress)?;
            }
            return Ok(());
        }
        if let Ok(note) = std::fs::read(job.note(stage.folder(), index)) {
            progress.done.fetch_add(bytes_in(&note), Relaxed);
            return Ok(());
        }
        match (stage, encoding) {
            (Stage::Write, Some(encoding)) if job.plan.wide => {
                write::write::<u32>(job, index, encoding, room, threads.max(1), progress)
            }
            (Stage::Write, Some(encoding)) => {
                write::write::<u16>(job, index, encoding, room, threads.max(1), progress)
            }
            (Stage::Write, None) => Err(Error::Invalid("writing needs a tokenizer".into())),
            _ => scan::scan(job, index, room, progress),
        }
    }
}

/// What the task of a note had read.
fn bytes_in(note: &[u8]) -> u64 {
    let note: serde_json::Value = serde_json::from_slice(note).unwrap_or_default();
    note["input"]["bytes_on_disk"].as_u64().unwrap_or(0)
}
