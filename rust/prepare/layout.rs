//! Which tokens go into which shard, on disk: laid out once, so that every shard can be written by itself, anywhere.
//!
//! A grid (`dedup/grid.rs`) in `work/shards/layout`: one or more rows for each shard, train before val. The first column
//! has the index of the shard, its split (0 or 1), its number, and the tokens of the row, each u64; the second has these
//! tokens in order, as the ranges of `Extent`, or of `Piece` if documents are packed. A row is in memory as a whole, and
//! has at most `IN_ROW` ranges: a shard may have millions of tiny documents.

use super::assemble::{Extent, Stream};
use super::pack::{self, Packed};
use super::tokens::{TaskTokens, load_tasks};
use super::{Job, Split};
use crate::atomic::{commit_note, create_folder, temporary_name};
use crate::crew::Progress;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::{Error, Result, option};
use crate::own_files::{self, damaged};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

pub const SHARDS: &str = "shards";
const MAGIC: Magic = *b"ramllay1";
const WORD: usize = 8;
/// Words of an extent.
const EXTENT: usize = 5;
/// Words of a piece.
const PIECE: usize = 4;
/// Ranges in a row.
pub const IN_ROW: usize = 8 << 10;
const HEAD: usize = 4;
/// Shards of a dataset: each takes up to 270 bytes of the manifest, which has at most 64 MB (small_files.py).
const MOST_SHARDS: u64 = 200_000;

/// The note that the layout is complete.
#[derive(Serialize, Deserialize)]
pub struct Layout {
    pub shards: u32,
    /// Of packing, if documents are packed.
    #[serde(flatten)]
    pub packed: Option<Packed>,
}

/// What a row belongs to.
pub struct Head {
    pub shard: u32,
    pub split: Split,
    pub number: u64,
    pub tokens: u64,
}

pub enum Parts {
    Extents(Vec<Extent>),
    Pieces(Vec<Piece>),
}

/// A range of a document's tokens in a sequence, and the padding after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub task: u32,
    pub from: Split,
    pub tokens: Range<u64>,
    pub padding: u64,
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        self.tokens.end - self.tokens.start
    }
}

fn layout_path(job: &Job) -> PathBuf {
    job.work.join(SHARDS).join("layout")
}

fn note_path(job: &Job) -> PathBuf {
    job.work.join(SHARDS).join("layout.json")
}

/// Lays out all shards, unless that is done.
pub fn lay_out(job: &Job, progress: &Progress) -> Result<()> {
    if note_path(job).exists() {
        return Ok(());
    }
    create_folder(&job.work.join(SHARDS))?;
    let layout = match job.plan.npy {
        Some(_) => Layout { shards: 1, packed: None },
        None => {
            for split in Split::ALL {
                create_folder(&job.out.join(split.name()))?;
            }
            let tasks = load_tasks(job)?;
            progress.total.store(documents(&tasks), Relaxed);
            let mut rows = Rows::create(job)?;
            let packed = match job.plan.pack {
                Some(length) => Some(pack::lay_out(job, &tasks, length, &mut rows, progress)?),
                None => {
                    fill_shards(job, &tasks, &mut rows, progress)?;
                    None
                }
            };
            Layout { shards: rows.commit()?, packed }
        }
    };
    commit_note(&note_path(job), &serde_json::to_vec(&layout).expect("plain data"))
}

pub fn layout(job: &Job) -> Result<Layout> {
    own_files::read_json(&note_path(job))
}

fn documents(tasks: &[TaskTokens]) -> u64 {
    tasks.iter().map(|task| task.train.documents + task.val.documents).sum()
}

/// A shard ends before the document that would not fit.
fn fill_shards(job: &Job, tasks: &[TaskTokens], rows: &mut Rows, progress: &Progress) -> Result<()> {
    for split in Split::ALL {
        rows.begin(split, job.plan.first_shard(split));
        let (mut extents, mut tokens): (Vec<Extent>, u64) = (Vec::new(), 0);
        Stream::new(job, tasks, split).for_each(|document| {
            progress.check()?;
            progress.done.fetch_add(1, Relaxed);
            let length = document.tokens.end - document.tokens.start;
            let full = tokens + length > job.plan.tokens_per_shard && !extents.is_empty();
            if full || extents.len() == IN_ROW {
                rows.add(&Parts::Extents(std::mem::take(&mut extents)))?;
            }
            if full {
                rows.end_shard()?;
                tokens = 0;
            }
            tokens += length;
            match extents.last_mut() {
                Some(last)
                    if (last.task, last.from) == (document.task, document.from)
                        && last.documents.end + document.dropped_before == document.documents.start =>
                {
                    last.documents.end = document.documents.end;
                    last.tokens.end = document.tokens.end;
                }
                _ => extents.push(document),
            }
            Ok(())
        })?;
        if !extents.is_empty() {
            rows.add(&Parts::Extents(extents))?;
        }
        rows.end_shard()?;
    }
    Ok(())
}

/// Writes the layout, a row at a time.
pub struct Rows {
    grid: GridWriter,
    temporary: PathBuf,
    path: PathBuf,
    split: Split,
    number: u64,
    shards: u32,
    /// Shards of the dataset that these are appended to.
    earlier: u64,
    /// Whether the current shard has a row.
    open: bool,
}

impl Rows {
    fn create(job: &Job) -> Result<Rows> {
        let path = layout_path(job);
        let temporary = temporary_name(&path);
        let grid = GridWriter::create(&temporary, MAGIC, 2)?;
        let earlier = Split::ALL.iter().map(|&split| job.plan.first_shard(split)).sum();
        Ok(Rows { grid, temporary, path, split: Split::Train, number: 0, shards: 0, earlier, open: false })
    }

    /// Begins a split, with the number of its first shard.
    pub fn begin(&mut self, split: Split, number: u64) {
        (self.split, self.number) = (split, number);
    }

    /// Adds some of the current shard.
    pub fn add(&mut self, parts: &Parts) -> Result<()> {
        let head = [u64::from(self.shards), self.split as u64, self.number, parts.tokens()];
        self.words(&head)?;
        self.grid.close_column();
        let source = |task: u32, from: Split| u64::from(task) << 1 | from as u64;
        match parts {
            Parts::Extents(extents) => extents.iter().try_for_each(|each| {
                let (documents, tokens) = (&each.documents, &each.tokens);
                let source = source(each.task, each.from);
                self.words(&[source, documents.start, documents.end, tokens.start, tokens.end])
            })?,
            Parts::Pieces(pieces) => pieces.iter().try_for_each(|each| {
                self.words(&[source(each.task, each.from), each.tokens.start, each.tokens.end, each.padding])
            })?,
        }
        self.open = true;
        self.grid.end_row()
    }

    /// The next row belongs to another shard; nothing happens if this one has none.
    pub fn end_shard(&mut self) -> Result<()> {
        if std::mem::take(&mut self.open) {
            self.shards += 1;
            self.number += 1;
        }
        if self.earlier + u64::from(self.shards) > MOST_SHARDS {
            return Err(Error::Invalid(format!(
                "the dataset would have more than 200,000 shards, the most that its manifest can list: give a larger {}",
                option("tokens_per_shard")
            )));
        }
        Ok(())
    }

    fn words(&mut self, words: &[u64]) -> Result<()> {
        words.iter().try_for_each(|word| self.grid.append(&word.to_le_bytes()))
    }

    fn commit(self) -> Result<u32> {
        self.grid.finish(u64::from(self.shards))?;
        commit(&self.temporary, &self.path)?;
        Ok(self.shards)
    }
}

impl Parts {
    /// Ids in the shard; near-duplicates between extents count too.
    fn tokens(&self) -> u64 {
        match self {
            Parts::Extents(extents) => extents.iter().map(|each| each.tokens.end - each.tokens.start).sum(),
            Parts::Pieces(pieces) => pieces.iter().map(|each| each.len() + each.padding).sum(),
        }
    }
}

/// The layout, read a row at a time.
pub struct LayoutFile {
    grid: GridFile,
    path: PathBuf,
    packed: bool,
}

impl LayoutFile {
    pub fn open(job: &Job) -> Result<LayoutFile> {
        let path = layout_path(job);
        let grid = GridFile::open(&path, MAGIC)?;
        if grid.columns != 2 {
            return Err(damaged(&path));
        }
        Ok(LayoutFile { grid, path, packed: job.plan.pack.is_some() })
    }

    /// The rows of a shard.
    pub fn rows(&self, shard: u32) -> Result<Range<usize>> {
        let first = self.first_row(shard)?;
        let rows = first..self.first_row(shard + 1)?;
        if rows.is_empty() { Err(damaged(&self.path)) } else { Ok(rows) }
    }

    /// The first row of this shard or of a later one, by bisection.
    fn first_row(&self, shard: u32) -> Result<usize> {
        let (mut low, mut high) = (0, self.grid.rows());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.head(middle)?.shard < shard { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    pub fn head(&self, row: usize) -> Result<Head> {
        let [shard, split, number, tokens] = self.column(row, 0, HEAD)?[..] else {
            return Err(damaged(&self.path));
        };
        Ok(Head { shard: shard as u32, split: split_of(split), number, tokens })
    }

    pub fn parts(&self, row: usize) -> Result<Parts> {
        let words = if self.packed { PIECE } else { EXTENT };
        let ranges = self.column(row, 1, words)?;
        let ranges = ranges.chunks_exact(words);
        Ok(match self.packed {
            true => Parts::Pieces(ranges.map(piece).collect()),
            false => Parts::Extents(ranges.map(extent).collect()),
        })
    }

    fn column(&self, row: usize, column: usize, words: usize) -> Result<Vec<u64>> {
        let mut cell = self.grid.cell(row, column, words * WORD)?;
        let mut bytes = vec![0; cell.records() as usize * words * WORD];
        cell.next(&mut bytes)?;
        Ok(bytes.chunks_exact(WORD).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect())
    }
}

fn split_of(bit: u64) -> Split {
    Split::ALL[(bit & 1) as usize]
}

fn extent(words: &[u64]) -> Extent {
    Extent {
        task: (words[0] >> 1) as u32,
        from: split_of(words[0]),
        documents: words[1]..words[2],
        tokens: words[3]..words[4],
        dropped_before: 0,
    }
}

fn piece(words: &[u64]) -> Piece {
    Piece {
        task: (words[0] >> 1) as u32,
        from: split_of(words[0]),
        tokens: words[1]..words[2],
        padding: words[3],
    }
}
