//! Files -> blocks of valid UTF-8: text, jsonl and parquet, plain or compressed, read by any number of workers at once.
//!
//! Guarantees: every document is returned exactly once, whatever the number of workers and lanes and the size of the
//! blocks, and however files are divided into parts; reading can be stopped, its `Position` saved, and resumed later as
//! if it had never stopped. Memory: a lane (one open file) takes one block, up to 8 if a document has no place to cut,
//! plus the decoder's window for compressed files and one page for parquet; a worker takes one block. Nothing grows
//! with a file, a line or a document: a jsonl line longer than a block goes through a file in `spill_dir`.
//!
//! ```text
//!  files ─► lane 0: read, decompress, cut ─┐            under the lane's lock
//!        ─► lane 1: read, decompress, cut ─┴► workers: parse jsonl ─► Block     without it
//! ```
//!
//! Files are read, not mapped: mapped pages would count as resident memory, and a file that shrinks while it is
//! mapped kills the process.

mod block;
mod decompress;
mod disk;
mod json;
mod jsonl;
mod lanes;
mod page_sizes;
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
pub use page_sizes::parquet_memory;
pub use range::{Range, can_split};
pub use row_groups::row_group_bytes;
pub use stamp::Stamp;
pub use tally::Counters;

use crate::error::{Error, Result};
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
    /// Modification time in nanoseconds since 1970 when the run was planned; another time is an error.
    pub modified: Option<i64>,
    /// `None` is the whole file.
    pub range: Option<Range>,
}

/// A new one also has a row in `FORMATS` of python/ramlet/inputs/formats.py, which names its suffixes, is read in
/// `lanes.rs`, and is in the list of `rust/tasks/records.rs`.
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

/// What is one document in a text file. In jsonl it is a line, in parquet a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Documents {
    File,
    /// Without the "\n" or "\r\n" that ends it.
    Line,
    /// The text between separators, without them. What follows the last one is a document if it is not empty.
    Separator(String),
}

impl Documents {
    /// "file", "line", or "separator" with the separator.
    pub fn named(name: &str, separator: Option<&str>) -> Result<Documents> {
        match (name, separator) {
            ("file", _) => Ok(Documents::File),
            ("line", _) => Ok(Documents::Line),
            ("separator", Some(separator)) => Ok(Documents::Separator(separator.to_owned())),
            _ => Err(Error::Invalid(format!("unknown documents {name:?}: use file, line or separator"))),
        }
    }
}

/// Where text that continues may be cut: the length of the longest prefix that can be processed by itself, 0 if none.
/// The text begins at the start of a document or where the same document was cut before.
pub type StablePrefix = Box<dyn Fn(&str) -> usize + Send + Sync>;

pub struct ReadOptions {
    pub documents: Documents,
    /// Field of a jsonl object or column of a parquet table; "meta.text" can also be `text` inside `meta`.
    pub text_field: String,
    /// Skip and count damaged lines and the rest of damaged files, instead of stopping with an error.
    pub skip_broken: bool,
    /// The approximate size of a block.
    pub block_bytes: usize,
    /// A document is cut after this many bytes if there is no other place to cut it. `None`: after 8 blocks.
    pub longest_part: Option<usize>,
    /// The largest window of each zstd or xz decoder.
    pub window_bytes: u64,
    /// For temporary files: decompressed parquet files, and jsonl lines longer than a block.
    pub spill_dir: PathBuf,
    pub stable_prefix: StablePrefix,
    /// Set to stop waiting for standard input.
    pub cancelled: Arc<AtomicBool>,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            documents: Documents::File,
            text_field: "text".into(),
            skip_broken: false,
            block_bytes: 1 << 20,
            longest_part: None,
            window_bytes: 128 << 20,
            spill_dir: std::env::temp_dir(),
            stable_prefix: Box::new(str::len),
            cancelled: Arc::default(),
        }
    }
}

/// The position of reading: which files are finished, where in the open ones the next block begins, and the counters so
/// far. To be saved and passed to `Sources::resume` in another process.
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
    /// Bytes of this file that are already in the counters.
    counted: u64,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Place {
    /// `offset` is in the decompressed stream.
    Text { offset: u64, document: u64, continues: bool },
    /// `handed` is for a line longer than a block: how many bytes of its text were returned.
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
