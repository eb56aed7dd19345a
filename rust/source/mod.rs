//! Files to blocks of valid UTF-8: text, jsonl and parquet, each plain or compressed, read by any number of
//! workers at once.
//!
//! What it guarantees: every document arrives exactly once, whatever the number of workers and lanes and the size
//! of the blocks, and however files are divided into parts; reading can be stopped, its `Position` written down, and
//! gone on with later as if it had never stopped. What it costs: a lane (one open file) holds one block, up to 8 while a document has no place to cut,
//! plus the decoder's window for compressed files and one page for parquet; a worker holds one block. Nothing grows with
//! a file, a line or a document: a jsonl line longer than a block goes through a file in `spill_dir`.
//!
//! ```text
//!  files ─► lane 0: read, unpack, cut ─┐            under the lane's lock
//!        ─► lane 1: read, unpack, cut ─┴► workers: parse jsonl ─► Block     outside it
//! ```
//!
//! Files are read, not mapped: mapped pages would count as resident memory, and a file that shrinks while it is
//! mapped ends the process.

mod block;
mod decompress;
mod disk;
mod json;
mod jsonl;
mod lanes;
mod parquet;
mod range;
mod row_groups;
mod scan;
mod scratch;
mod stamp;
mod tally;
mod text;
mod unescape;
mod utf8;
mod window;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

pub use block::{Block, Fragment, SPARE};
pub use lanes::{Files, Sources};
pub use range::{Range, can_split};
pub use row_groups::row_group_bytes;
pub use stamp::Stamp;
pub use tally::Counters;

use crate::error::Result;
use tally::Tally;
use text::Boundary;

/// One input file, as planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// "-" is standard input.
    pub path: PathBuf,
    pub format: Format,
    pub compression: Compression,
    /// Bytes on disk when the run was planned; another size is an error. `None` is not checked.
    pub size: Option<u64>,
    /// When it was written to last, in nanoseconds since 1970, when the run was planned; another time is an error.
    pub modified: Option<i64>,
    /// `None` is the whole file.
    pub range: Option<Range>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Jsonl,
    Parquet,
}

impl Format {
    /// "text", "jsonl" or "parquet".
    pub fn named(name: &str) -> Option<Format> {
        Some(match name {
            "text" => Format::Text,
            "jsonl" => Format::Jsonl,
            "parquet" => Format::Parquet,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gz,
    Zst,
    Xz,
    Bz2,
}

impl Compression {
    /// By file ending without the dot: "", "gz", "zst", "xz" or "bz2".
    pub fn named(name: &str) -> Option<Compression> {
        Some(match name {
            "" => Compression::None,
            "gz" => Compression::Gz,
            "zst" => Compression::Zst,
            "xz" => Compression::Xz,
            "bz2" => Compression::Bz2,
            _ => return None,
        })
    }
}

/// What is a document in a text file. In jsonl a line, in parquet a row is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Documents {
    File,
    /// Without the "\n" or "\r\n" that ends it.
    Line,
    /// The text between separators, without them. What follows the last one is a document if it is not empty.
    Separator(String),
}

/// Where text that goes on may be cut: the length of the longest prefix that can be worked on by itself, 0 if none.
/// The text given begins at the start of a document or where the same document was cut before.
pub type StablePrefix = Box<dyn Fn(&str) -> usize + Send + Sync>;

pub struct ReadOptions {
    pub documents: Documents,
    /// Field of a jsonl object or column of a parquet table; "meta.text" also is `text` inside `meta`.
    pub text_field: String,
    /// Count damaged lines and the rest of damaged files and go on, instead of stopping with an error.
    pub skip_broken: bool,
    /// About what a block holds.
    pub block_bytes: usize,
    /// The largest window granted to each zstd or xz decoder.
    pub window_bytes: u64,
    /// Holds, while they are read, compressed parquet files unpacked and jsonl lines longer than a block.
    pub spill_dir: PathBuf,
    pub stable_prefix: StablePrefix,
    /// Set by whoever waits, to end a wait for standard input that gives nothing.
    pub cancelled: Arc<AtomicBool>,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            documents: Documents::File,
            text_field: "text".into(),
            skip_broken: false,
            block_bytes: 1 << 20,
            window_bytes: 128 << 20,
            spill_dir: std::env::temp_dir(),
            stable_prefix: Box::new(str::len),
            cancelled: Arc::default(),
        }
    }
}

/// Where reading stands: which files are finished, where in the open ones the next block begins, and the
/// counters so far. To be written down and given to `Sources::resume` in another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    pub(crate) files_taken: u64,
    pub(crate) open: Vec<FilePosition>,
    pub(crate) counters: Counters,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FilePosition {
    file: u64,
    path: String,
    size: Option<u64>,
    #[serde(default)]
    range: Option<Range>,
    /// Bytes of this file that the counters already have.
    counted: u64,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Place {
    /// `offset` is into the unpacked stream.
    Text { offset: u64, document: u64, continues: bool },
    /// `handed` is for a line longer than a block: bytes of its text handed out.
    Jsonl { offset: u64, line: u64, handed: Option<u64> },
    /// `handed` is for a row larger than a block.
    Parquet { row: u64, handed: u64 },
}

/// What all lanes and workers share.
struct Shared {
    options: ReadOptions,
    boundary: Boundary,
    block_bytes: usize,
    /// Fragments take memory too: two-byte lines must not make a block twenty times its size.
    max_fragments: usize,
    tally: Arc<Tally>,
}

impl Shared {
    fn new(options: ReadOptions) -> Result<Shared> {
        let block_bytes = options.block_bytes.max(4);
        Ok(Shared {
            boundary: Boundary::new(&options.documents)?,
            block_bytes,
            max_fragments: (block_bytes / 32).max(16),
            tally: Arc::new(Tally::default()),
            options,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
