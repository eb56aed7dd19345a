//! The documents of a task, one after another, none longer than the limit that the later stages need.
//!
//! A document that is complete in one block is borrowed from it; one that comes in fragments is joined, and one longer
//! than the limit is cut into parts. Where it is cut depends only on the document and the limit, not on the size of the
//! blocks. Memory: one block, and for fragments the limit and one more block.

use std::ops;

use crate::error::Result;
use crate::source::{Block, Fragment, Sources};

/// How long a document may be, in bytes; at least 4, so that a character always fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_bytes: usize,
    /// For text files that are one document each: these rarely are one coherent text.
    pub max_bytes_whole_files: usize,
}

/// A document, or a part of one. The parts of a document, joined, are the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// Never empty: empty documents only appear in the counters of the sources.
    pub text: &'a str,
    /// Index among the files of the task, from 0.
    pub file: u64,
    /// Index within that file, or within the part of it that belongs to the task, from 0.
    pub document: u64,
    /// From 0.
    pub part: u32,
    pub last_part: bool,
}

/// Reads from `Sources` with one lane, as their only reader.
///
/// ```text
/// let mut documents = Documents::new(&sources, limits);
/// while let Some(document) = documents.next()? { ... }
/// ```
pub struct Documents<'a> {
    sources: &'a Sources,
    limits: Limits,
    block: Block,
    /// The fragment of the block that `rest` ends with.
    fragment: usize,
    /// What remains of that fragment, and of the document before it.
    rest: Option<Rest>,
    /// The start of a document that continues in the next fragment, if `continues`.
    carried: String,
    continues: bool,
    part: u32,
}

/// Text that was not returned yet.
#[derive(Clone)]
struct Rest {
    /// In `carried`, not in the block.
    carried: bool,
    range: ops::Range<usize>,
}

impl<'a> Documents<'a> {
    pub fn new(sources: &'a Sources, limits: Limits) -> Documents<'a> {
        Documents {
            sources,
            limits: Limits {
                max_bytes: limits.max_bytes.max(4),
                max_bytes_whole_files: limits.max_bytes_whole_files.max(4),
            },
            block: Block::new(),
            fragment: 0,
            rest: None,
            carried: String::new(),
            continues: false,
            part: 0,
        }
    }

    /// The next document or part of one; `None` after the last.
    #[allow(clippy::should_implement_trait)] // it returns borrows of itself, which an `Iterator` cannot
    pub fn next(&mut self) -> Result<Option<Document<'_>>> {
        loop {
            if self.rest.is_none() && !self.enter()? {
                return Ok(None);
            }
            if let Some((rest, last_part)) = self.take() {
                let Fragment { file, document, .. } = self.block.fragments[self.fragment];
                let part = self.part;
                self.part += 1;
                if last_part {
                    self.part = 0;
                    self.leave(false);
                }
                return Ok(Some(Document { text: self.text(&rest), file, document, part, last_part }));
            }
            self.carry();
            self.leave(true);
        }
    }

    fn text(&self, rest: &Rest) -> &str {
        let held = if rest.carried { &self.carried } else { &self.block.text };
        &held[rest.range.clone()]
    }

    fn limit(&self) -> usize {
        if self.block.whole_file { self.limits.max_bytes_whole_files } else { self.limits.max_bytes }
    }

    /// Goes to the next fragment, in the next block if necessary; false at the end.
    fn enter(&mut self) -> Result<bool> {
        while self.fragment == self.block.fragments.len() {
            self.fragment = 0;
            if !self.sources.next_block(0, &mut self.block)? {
                self.block.fragments.clear();
                return Ok(false);
            }
        }
        let fragment = self.block.fragments[self.fragment];
        let range = fragment.start..fragment.end;
        self.rest = Some(if self.continues {
            // Exactly, because growing by doubling would take up to twice as much. `carried` is within the limit.
            self.carried.reserve_exact(self.limit() - self.carried.len() + range.len());
            self.carried.push_str(&self.block.text[range]);
            Rest { carried: true, range: 0..self.carried.len() }
        } else {
            Rest { carried: false, range }
        });
        Ok(true)
    }

    /// The next part, if its end is known, and whether it is the last.
    fn take(&mut self) -> Option<(Rest, bool)> {
        let rest = self.rest.clone()?;
        let text = self.text(&rest);
        let limit = self.limit();
        if text.len() <= limit {
            return self.block.fragments[self.fragment].ends_document.then_some((rest, true));
        }
        let cut = rest.range.start + cut(text, limit);
        self.rest.as_mut()?.range.start = cut;
        Some((Rest { range: rest.range.start..cut, ..rest }, false))
    }

    /// Keeps what remains, at most the limit, for the next fragments.
    fn carry(&mut self) {
        let Some(Rest { carried, range }) = self.rest.take() else { return };
        if carried {
            self.carried.drain(..range.start);
        } else {
            self.carried.clear();
            self.carried.reserve_exact(self.limit() + self.block.text.len());
            self.carried.push_str(&self.block.text[range]);
        }
    }

    fn leave(&mut self, continues: bool) {
        self.rest = None;
        self.continues = continues;
        self.fragment += 1;
    }
}

/// Where to cut `text`, which is longer than `limit`: after the last blank line in the second half of the first `limit`
/// bytes, else after the last line end there, else after the last blank, else at the limit.
fn cut(text: &str, limit: usize) -> usize {
    let bytes = text.as_bytes();
    let last =
        |is_place: &dyn Fn(usize) -> bool| (limit / 2..limit).rev().find(|&at| is_place(at)).map(|at| at + 1);
    let ends_line = |at: usize| bytes[at] == b'\n';
    let ends_blank_line =
        |at: usize| ends_line(at) && (bytes[..at].ends_with(b"\n") || bytes[..at].ends_with(b"\n\r"));
    last(&ends_blank_line)
        .or_else(|| last(&ends_line))
        .or_else(|| last(&|at| matches!(bytes[at], b' ' | b'\t')))
        .unwrap_or_else(|| (0..=limit).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Compression, Documents as Kind, FileSpec, Format, ReadOptions};
    use proptest::prelude::*;

    /// The definition of `cut`: tries every place.
    fn cut_by_trying(text: &str, limit: usize) -> usize {
        let places: Vec<usize> = (1..=limit).filter(|&at| text.is_char_boundary(at)).collect();
        let last = |ends: &[&str]| {
            let is_after =
                |at: &&usize| **at > limit / 2 && ends.iter().any(|end| text[..**at].ends_with(end));
            places.iter().rev().find(is_after).copied()
        };
        last(&["\n\n", "\n\r\n"])
            .or_else(|| last(&["\n"]))
            .or_else(|| last(&[" ", "\t"]))
            .unwrap_or(*places.last().unwrap())
    }

    /// (text, file, document, part, last part)
    type Part = (String, u64, u64, u32, bool);

    fn expected(file: u64, document: u64, mut text: &str, limit: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        while text.len() > limit {
            let (part, rest) = text.split_at(cut_by_trying(text, limit));
            parts.push((part.to_owned(), file, document, parts.len() as u32, false));
            text = rest;
        }
        if !text.is_empty() {
            parts.push((text.to_owned(), file, document, parts.len() as u32, true));
        }
        parts
    }

    fn texts() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => "[a-c]{1,9}",
            2 => prop::sample::select(vec!["\n", "\n\n", "\r\n\r\n", "\r\n", " ", "\t", "é", "漢字", "😀"]).prop_map(String::from),
            1 => (1usize..120).prop_map(|length| "x".repeat(length)),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        #[test]
        fn parts_do_not_depend_on_the_blocks(
            texts in prop::collection::vec(texts(), 1..6),
            max_bytes in 4usize..200,
            max_bytes_whole_files in 4usize..200,
            block_bytes in prop::sample::select(vec![16usize, 17, 40, 100, 1000, 100_000]),
            separated in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (mut specs, mut wanted) = (Vec::new(), Vec::new());
            let mut add = |name: String, format, bytes: String| {
                let path = folder.path().join(name);
                std::fs::write(&path, &bytes).unwrap();
                specs.push(FileSpec { path, format, compression: Compression::None, size: None, modified: None, range: None });
                specs.len() as u64 - 1
            };
            let lines: Vec<String> = texts.iter().map(|text| serde_json::json!({"text": text}).to_string()).collect();
            let file = add("jsonl".into(), Format::Jsonl, lines.join("\n"));
            for (line, text) in texts.iter().enumerate() {
                wanted.extend(expected(file, line as u64, text, max_bytes));
            }
            if separated {
                let file = add("text".into(), Format::Text, texts.join("<|end|>"));
                for (document, text) in texts.iter().enumerate() {
                    wanted.extend(expected(file, document as u64, text, max_bytes));
                }
            } else {
                for (number, text) in texts.iter().enumerate() {
                    let file = add(format!("{number}"), Format::Text, text.clone());
                    wanted.extend(expected(file, 0, text, max_bytes_whole_files));
                }
            }
            let options = ReadOptions {
                documents: if separated { Kind::Separator("<|end|>".into()) } else { Kind::File },
                block_bytes,
                spill_dir: folder.path().join("spill"),
                ..ReadOptions::default()
            };
            let mut files = specs.into_iter();
            let sources = Sources::new(Box::new(move || Ok(files.next())), 1, options).unwrap();
            let mut documents = Documents::new(&sources, Limits { max_bytes, max_bytes_whole_files });
            let mut got: Vec<Part> = Vec::new();
            while let Some(Document { text, file, document, part, last_part }) = documents.next().unwrap() {
                got.push((text.to_owned(), file, document, part, last_part));
            }
            prop_assert_eq!(got, wanted);
            prop_assert!(documents.next().unwrap().is_none());
            let most = max_bytes.max(max_bytes_whole_files) + 9 * block_bytes + crate::source::SPARE;
            prop_assert!(documents.carried.capacity() <= most);
        }
    }

    #[test]
    fn a_document_within_a_block_is_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "some lines\nof text\n".repeat(100)).unwrap();
        let spec = FileSpec {
            path,
            format: Format::Text,
            compression: Compression::None,
            size: None,
            modified: None,
            range: None,
        };
        let mut files = Some(spec).into_iter();
        let options = ReadOptions { documents: Kind::Line, ..ReadOptions::default() };
        let sources = Sources::new(Box::new(move || Ok(files.next())), 1, options).unwrap();
        let mut documents = Documents::new(&sources, Limits { max_bytes: 8, max_bytes_whole_files: 8 });
        let mut parts = 0;
        while documents.next().unwrap().is_some() {
            parts += 1;
        }
        assert_eq!(parts, 300);
        assert_eq!(documents.carried.capacity(), 0);
    }
}
