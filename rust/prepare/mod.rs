//! Raw text -> shards of tokens, in tasks that each commit their own result.
//!
//! ```text
//!  screen  task i       read, clean, compare          -> work/exclude  (with a large evaluation set to keep out)
//!  scan    task i       read, clean, compare, hash    -> work/scan     (with dedup or exclude, or to learn a vocabulary)
//!  settle  partition p  find the hashes seen before   -> work/drops
//!  write   task i       read, clean, drop, encode     -> work/tokens
//!  pair    partition p  documents that may be similar -> work/near_pairs   (with near)
//!  compare task i       compare them on their text    -> work/near
//!  decide               which of them are dropped     -> work/near
//!  near    task i       the task without them         -> work/near
//!  layout               which tokens go where         -> work/shards
//!  assemble shard s     its tokens, in order          -> out/{train,val}
//! ```
//!
//! A task is a plain function of the plan and an index. When its output is complete, a note is written, and a task with
//! a note is not run again. Which tasks there are, and everything in their results, depends on the inputs and the
//! settings only: not on threads, memory, or where a run was interrupted.

pub mod assemble;
mod kept_ranges;
pub mod layout;
mod ledger;
pub mod near;
mod pack;
mod read;
mod scan;
mod screen;
pub mod shard;
pub mod tokens;
mod write;

use crate::atomic::create_folder;
use crate::bpe::LONG_PIECE_BYTES;
use crate::clean;
use crate::crew::{Progress, Watch, crew};
use crate::dedup::{self, SettlePlan, Unit};
use crate::encode::{Batch, Encoder, Id, encode_batch};
use crate::error::{Error, Result};
use crate::exclude;
use crate::near::Near;
use crate::near::pairs::{PairPlan, find_pairs, pairs_file};
use crate::own_files;
use crate::specials::Specials;
pub use scan::commit_cache;
use screen::Excluded;
pub use screen::contaminated;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
pub use tokens::Split;

/// Everything that decides the results, except the inputs themselves: those are listed in `work/inputs`.
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
    /// What is compared to find duplicates; `None` disables deduplication.
    pub unit: Option<Unit>,
    /// How near-duplicates are found; `None` keeps them.
    #[serde(default)]
    pub near: Option<Near>,
    pub cache: Option<PathBuf>,
    /// What was in the cache when the run was planned: all stages compare with these files, whatever is added meanwhile.
    pub cache_listing: dedup::Listing,
    /// Of the cleaning settings, 32 hexadecimal digits: only hashes of texts cleaned alike can be compared.
    pub cache_fingerprint: String,
    /// Words in the n-grams that no document may share with the evaluation set; 0 if there is none.
    #[serde(default)]
    pub exclude_ngram: usize,
    /// Whether to collect the characters of the text, for a character vocabulary.
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
    /// Whether the shards are appended to an existing dataset.
    pub appends: bool,
    /// The length of the sequences that documents are packed into.
    #[serde(default)]
    pub pack: Option<u64>,
    /// The name of the one file that all ids go to, instead of shards.
    #[serde(default)]
    pub npy: Option<PathBuf>,
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
}

/// A plan and its folders.
pub struct Job {
    pub plan: Plan,
    pub work: PathBuf,
    pub out: PathBuf,
    /// Locked while a thread encodes a text that cleaning made longer than any document as read.
    grown: Mutex<()>,
}

impl Job {
    pub fn load(work: &Path, out: &Path) -> Result<Job> {
        let plan = own_files::read_json(&work.join("plan.json"))?;
        Ok(Job { plan, work: work.to_owned(), out: out.to_owned(), grown: Mutex::default() })
    }

    /// The note that a part of a stage is done.
    fn note(&self, stage: &str, index: u32) -> PathBuf {
        self.work.join(stage).join(format!("{index:06}.json"))
    }
}

/// Opens what earlier runs put into the plan's cache: files that this run cannot compare with are an error, before any
/// work is done.
pub fn check_caches(plan: Plan) -> Result<()> {
    let job = Job { plan, work: PathBuf::new(), out: PathBuf::new(), grown: Mutex::default() };
    scan::caches(&job)?;
    if job.plan.near.is_some() {
        near::caches(&job)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Scan,
    Settle,
    Write,
    Pair,
}

impl Stage {
    pub fn named(name: &str) -> Option<Stage> {
        Some(match name {
            "scan" => Stage::Scan,
            "settle" => Stage::Settle,
            "write" => Stage::Write,
            "pair" => Stage::Pair,
            _ => return None,
        })
    }

    fn folder(self) -> &'static str {
        match self {
            Stage::Scan => "scan",
            Stage::Settle => "drops",
            Stage::Write => "tokens",
            Stage::Pair => near::PAIRS,
        }
    }
}

/// What turns documents into ids.
pub enum Encoding<'a> {
    Native(&'a Encoder),
    /// A tokenizer that the native core does not implement.
    Foreign(&'a (dyn Fn(&[&str]) -> Result<Batch<u32>> + Sync)),
}

impl Encoding<'_> {
    fn encode<I: Id>(&self, documents: &[&str], threads: usize, progress: &Progress) -> Result<Batch<I>> {
        match self {
            Encoding::Native(encoder) => {
                let (specials, whole) = (Specials::default(), usize::MAX);
                encode_batch(encoder, documents, &specials, &[], whole, threads, &mut |_| progress.check())
            }
            Encoding::Foreign(encode) => {
                let Batch { ids, ends } = encode(documents)?;
                Ok(Batch { ids: ids.into_iter().map(I::from_u32).collect(), ends })
            }
        }
    }
}

/// The sizes of one worker's buffers.
#[derive(Clone, Copy, Debug)]
pub struct BufferSizes {
    /// Text, as it is read and as it is encoded.
    pub block_bytes: usize,
    /// The window of a decompressor.
    pub window_bytes: u64,
    /// Hashes that are not on disk yet, or those of a partition.
    pub hash_bytes: usize,
}

const LEAST_BLOCK: usize = 64 << 10;
const LARGEST_BLOCK: usize = 512 << 10;
const LARGEST_RECORDS: usize = 8 << 20;
/// The distinct hashes of a partition. One with more, because its documents are far smaller than estimated, is
/// processed in several passes: memory does not grow with the input, even if the budget would allow it.
const LARGEST_SET: usize = 40 << 20;
/// Bytes per byte of a batch: the block, the batch, an id for every byte in three places, and merging.
const BLOCK_COPIES: usize = 14;
/// Bytes per byte of a document: as read, cleaned, the buffers of cleaning, and its ids in two places.
const DOCUMENT_COPIES: usize = 14;
/// The same with near-duplicates: folded.
const NEAR_COPIES: usize = 2;
/// NFC may triple the bytes of a text: U+1D160 and U+FB2C become three characters.
const GROWTH: usize = 3;
/// Bytes per byte of the one document that is encoded alone, in addition to those of any other: its text again and the
/// symbols of a piece; and for merging if all of it is one piece.
const ALONE_COPIES: usize = 6;
const MERGED_COPIES: usize = 2 + LONG_PIECE_BYTES;

impl BufferSizes {
    /// The least memory that a worker needs.
    pub fn least_memory(plan: &Plan) -> usize {
        let document = plan.largest_document();
        let copies = DOCUMENT_COPIES + if plan.near.is_some() { NEAR_COPIES } else { 0 };
        copies * document + BLOCK_COPIES * LEAST_BLOCK + dedup::LEAST_MEMORY
    }

    /// What all workers share in addition: memory for one document at a time that is a single piece, or that cleaning
    /// has made longer. `merges` says whether the encoder merges (BPE).
    pub fn shared_memory(plan: &Plan, merges: bool) -> usize {
        let longest = plan.largest_document() * if plan.clean.normalize { GROWTH } else { 1 };
        let copies = if merges { MERGED_COPIES } else { ALONE_COPIES };
        let excluded = if plan.exclude_ngram > 0 { exclude::LEAST_MEMORY } else { 0 };
        (copies + if plan.wide { 2 } else { 0 }) * longest + excluded
    }

    /// `memory` divided among `threads`.
    pub fn new(plan: &Plan, memory: usize, threads: usize) -> BufferSizes {
        let share = memory.saturating_sub(BufferSizes::shared_memory(plan, true)) / threads.max(1);
        let share = share.saturating_sub(BufferSizes::least_memory(plan));
        BufferSizes {
            block_bytes: (LEAST_BLOCK + share / 4 / BLOCK_COPIES).min(LARGEST_BLOCK),
            window_bytes: (share as u64 / 4).clamp(8 << 20, 128 << 20),
            hash_bytes: dedup::LEAST_MEMORY + share / 2,
        }
    }
}

/// Runs those of the parts that are not done yet, on all threads.
#[allow(clippy::too_many_arguments)]
pub fn run_stage(
    job: &Job,
    stage: Stage,
    parts: &[u32],
    encoding: Option<&Encoding<'_>>,
    memory: usize,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let sharing = threads.min(parts.len()).max(1);
    let (excluded, memory) = match stage {
        Stage::Scan => screen::screen(job, parts, memory, threads, progress, watch)?,
        Stage::Settle | Stage::Write | Stage::Pair => (None, memory),
    };
    let sizes = BufferSizes::new(&job.plan, memory, sharing);
    let part = Part::new(job, stage, encoding, excluded, sizes)?;
    run_parts(parts, threads, progress, watch, |index, threads| part.run(index, threads, progress))
}

/// Calls `run(index, threads)` for each part, on all threads; those without a part of their own help the others.
fn run_parts(
    parts: &[u32],
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
    run: impl Fn(u32, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    crew(threads.min(parts.len()).max(1), progress, watch, |_| {
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(&index) = parts.get(at) else { return Ok(()) };
            progress.check()?;
            let working = (parts.len() - at).min(threads).max(1);
            run(index, threads / working)?;
        }
    })?;
    Ok(())
}

/// Any part of a stage: a plain function of the plan and an index.
struct Part<'a> {
    job: &'a Job,
    stage: Stage,
    encoding: Option<&'a Encoding<'a>>,
    excluded: Option<Excluded>,
    sizes: BufferSizes,
    settling: Option<SettlePlan>,
    pairing: Option<PairPlan>,
}

impl<'a> Part<'a> {
    fn new(
        job: &'a Job,
        stage: Stage,
        encoding: Option<&'a Encoding<'a>>,
        excluded: Option<Excluded>,
        sizes: BufferSizes,
    ) -> Result<Self> {
        create_folder(&job.work.join(stage.folder()))?;
        let settling = match stage {
            Stage::Settle => Some(scan::settle_plan(job, &sizes)?),
            _ => None,
        };
        let pairing = match stage {
            Stage::Pair => Some(near::pair_plan(job, &sizes)?),
            _ => None,
        };
        Ok(Part { job, stage, encoding, excluded, sizes, settling, pairing })
    }

    /// Runs part `index` unless it is done already, with up to `threads` threads for encoding.
    fn run(&self, index: u32, threads: usize, progress: &Progress) -> Result<()> {
        let Part { job, stage, encoding, excluded, sizes, settling, pairing } = self;
        if let Some(pairing) = pairing {
            if !pairs_file(&pairing.out, index).exists() {
                find_pairs(index, pairing, progress)?;
            }
            return Ok(());
        }
        if let Some(settling) = settling {
            if !dedup::drop_file(&settling.out, index).exists() {
                dedup::settle(index, settling, progress)?;
            }
            return Ok(());
        }
        if let Ok(note) = own_files::read(&job.note(stage.folder(), index)) {
            progress.done.fetch_add(bytes_in(&note), Relaxed);
            return Ok(());
        }
        match (stage, encoding) {
            (Stage::Write, Some(encoding)) if job.plan.wide => {
                write::write::<u32>(job, index, encoding, sizes, threads.max(1), progress)
            }
            (Stage::Write, Some(encoding)) => {
                write::write::<u16>(job, index, encoding, sizes, threads.max(1), progress)
            }
            (Stage::Write, None) => Err(Error::Invalid("writing needs a tokenizer".into())),
            _ => scan::scan(job, index, excluded.as_ref(), sizes, progress),
        }
    }
}

/// How many bytes the task of a note has read.
fn bytes_in(note: &[u8]) -> u64 {
    let note: serde_json::Value = serde_json::from_slice(note).unwrap_or_default();
    note["input"]["bytes_on_disk"].as_u64().unwrap_or(0)
}
