//! jsonl: one JSON object per line, of which one field is the document.
//!
//! Under the lane's lock lines are only found and counted; the worker parses them. A line longer than a block is parsed
//! under the lock, and its text is written to a temporary file and returned from there: so a line is used completely
//! or, if it is broken, not at all, whatever its length and the size of the blocks.

use std::borrow::Cow;
use std::sync::Arc;

use super::block::{Block, Fragment};
use super::disk::Disk;
use super::json::{Fault, FaultKind, Fed, FieldReader, Line};
use super::scan::{count_byte, find_byte};
use super::scratch::Scratch;
use super::tally::add;
use super::text::{Boundary, DocumentPlace, TextReader};
use super::utf8::{count_invalid, decode, raw_prefix};
use super::window::Window;
use super::{Place, Shared};
use crate::error::{Error, Result};

pub(super) struct JsonlReader {
    window: Window,
    /// Lines returned so far.
    line: u64,
    long: Option<LongLine>,
}

/// A line whose text is being returned in parts.
struct LongLine {
    /// Where the line begins in the stream.
    offset: u64,
    text: TextReader,
}

/// Whole lines, in `Block::lines`, to be parsed.
pub(super) struct Lines {
    pub disk: Arc<Disk>,
    pub file: u64,
    /// The index of the first one, from 0.
    pub line: u64,
}

/// What a reader has put into a block.
pub(super) enum Filled {
    Text,
    /// To be parsed.
    Lines(Lines),
}

impl JsonlReader {
    pub fn new(window: Window) -> JsonlReader {
        JsonlReader { window, line: 0, long: None }
    }

    /// Resumes at a place; `window` is at its offset.
    pub fn resume(
        window: Window,
        line: u64,
        handed: Option<u64>,
        shared: &Shared,
        disk: &Disk,
    ) -> Result<JsonlReader> {
        let mut reader = JsonlReader { line, ..JsonlReader::new(window) };
        if let Some(handed) = handed {
            reader.open_long_line(shared, disk, Some(handed))?;
        }
        Ok(reader)
    }

    pub fn place(&self) -> Place {
        match &self.long {
            Some(long) => Place::Jsonl {
                offset: long.offset,
                line: self.line - 1,
                handed: Some(long.text.window.offset()),
            },
            None => Place::Jsonl { offset: self.window.offset(), line: self.line, handed: None },
        }
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.window.into_buffer()
    }

    /// Fills `block` with lines or text. True when that was the last.
    pub fn next(
        &mut self,
        shared: &Shared,
        disk: &Arc<Disk>,
        file: u64,
        block: &mut Block,
    ) -> Result<(Filled, bool)> {
        if self.long.is_none() {
            // More than half a block may remain of one with too many lines; moving it to read more would cost time.
            if self.window.bytes().len() < shared.block_bytes / 2 {
                self.window.fill(shared.block_bytes)?;
            }
            let mut lines = self.whole_lines(shared);
            if lines.is_none() {
                self.window.fill(shared.block_bytes)?;
                lines = self.whole_lines(shared);
            }
            if let Some((bytes, count)) = lines {
                self.window.move_to(bytes, &mut block.lines);
                let lines = Lines { disk: Arc::clone(disk), file, line: self.line };
                self.line += count;
                return Ok((Filled::Lines(lines), self.finished()));
            }
            self.open_long_line(shared, disk, None)?;
        }
        block.text.clear();
        if let Some(long) = &mut self.long
            && long.text.next(shared, &Boundary::End, file, block)?
        {
            self.long = None;
        }
        Ok((Filled::Text, self.long.is_none() && self.finished()))
    }

    fn finished(&self) -> bool {
        self.window.ended() && self.window.bytes().is_empty()
    }

    /// The bytes up to the end of the last complete line, and how many lines; `None` if there is none.
    fn whole_lines(&self, shared: &Shared) -> Option<(usize, u64)> {
        let there = self.window.bytes();
        let look = &there[..there.len().min(shared.block_bytes)];
        let end = if self.window.ended() && look.len() == there.len() {
            look.len()
        } else {
            look.iter().rposition(|&byte| byte == b'\n')? + 1
        };
        let count = count_byte(&look[..end], b'\n');
        if count <= shared.max_fragments {
            return Some((end, count as u64));
        }
        let mut end = 0;
        for _ in 0..shared.max_fragments {
            end = find_byte(look, end, b'\n')? + 1;
        }
        Some((end, shared.max_fragments as u64))
    }

    /// Parses the line at the window's start into a temporary file. `handed` is how much of its text was returned
    /// before an interruption: it is counted already.
    fn open_long_line(&mut self, shared: &Shared, disk: &Disk, handed: Option<u64>) -> Result<()> {
        let (offset, line) = (self.window.offset(), self.line);
        let mut scratch = Scratch::create(&shared.options.spill_dir)?;
        let mut reader = FieldReader::new(&shared.options.text_field);
        let (outcome, invalid) = self.parse_line(shared, &mut reader, &mut scratch)?;
        self.line += 1;
        if handed.is_none() {
            add(&shared.tally.invalid_utf8, invalid);
        }
        match outcome {
            Ok(Line::Blank) => return Ok(()),
            Ok(Line::Text) if handed.is_none() => {
                add(&shared.tally.lone_surrogates, reader.lone_surrogates);
            }
            Ok(Line::Text) => {}
            Err(fault) => return skip_line(shared, disk, line, fault),
        }
        let handed = handed.unwrap_or(0);
        scratch.seek(handed)?;
        let window = Window::new(Box::new(scratch), Vec::new(), handed);
        let place = DocumentPlace { document: line, continues: handed > 0 };
        self.long = Some(LongLine { offset, text: TextReader::new(window, place, shared) });
        Ok(())
    }

    /// Consumes one line of any length, a block at a time. Returns its outcome and the number of invalid UTF-8
    /// sequences.
    fn parse_line(
        &mut self,
        shared: &Shared,
        reader: &mut FieldReader<'_>,
        scratch: &mut Scratch,
    ) -> Result<(Result<Line, Fault>, u64)> {
        let mut out = String::new();
        let (mut fault, mut invalid, mut ended) = (None, 0, false);
        while !ended {
            self.window.fill(shared.block_bytes)?;
            let there = self.window.bytes();
            let look = &there[..there.len().min(shared.block_bytes)];
            let decoded = decode(look, self.window.ended() && look.len() == there.len(), shared.block_bytes);
            let text = decoded.text.as_ref();
            let rest_from = match fault {
                Some(_) => Some(0),
                None => match reader.feed(text, &mut out) {
                    Ok(Fed::More) => None,
                    Ok(Fed::LineEnd(next)) => Some(next - 1),
                    Err(found) => {
                        fault = Some(found);
                        Some(found.at)
                    }
                },
            };
            let newline = rest_from.and_then(|from| Some(from + text[from..].find('\n')?));
            let used = newline.map_or(text.len(), |at| at + 1);
            let (raw, bad) = match &decoded.text {
                Cow::Borrowed(_) => (used, 0),
                Cow::Owned(_) => raw_prefix(&look[..decoded.raw], used),
            };
            invalid += bad;
            self.window.consume(raw);
            ended = newline.is_some() || self.finished();
            if std::mem::take(&mut reader.replaced) {
                scratch.clear()?;
            }
            scratch.write(out.as_bytes())?;
            out.clear();
        }
        Ok((fault.map_or_else(|| reader.finish(), Err), invalid))
    }
}

/// Turns the lines in `block` into text, without a lock.
pub(super) fn parse(shared: &Shared, lines: &Lines, block: &mut Block) -> Result<()> {
    let bytes = std::mem::take(&mut block.lines);
    // A line end is never part of an invalid sequence, so replacing these does not change the lines.
    let text = match simdutf8::basic::from_utf8(&bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            add(&shared.tally.invalid_utf8, count_invalid(&bytes));
            String::from_utf8_lossy(&bytes)
        }
    };
    let parsed = parse_lines(shared, lines, &text, block);
    drop(text);
    block.lines = bytes;
    parsed
}

fn parse_lines(shared: &Shared, lines: &Lines, text: &str, block: &mut Block) -> Result<()> {
    let mut reader = FieldReader::new(&shared.options.text_field);
    let (mut documents, mut lone_surrogates) = (0, 0);
    let mut line = lines.line;
    let mut at = 0;
    block.text.clear();
    while at < text.len() {
        let start = block.text.len();
        reader.start_line(start);
        let rest = &text[at..];
        let (length, outcome) = match reader.feed(rest, &mut block.text) {
            Ok(Fed::LineEnd(next)) => (next, reader.finish()),
            Ok(Fed::More) => (rest.len(), reader.finish()),
            Err(fault) => {
                let newline = rest[fault.at..].find('\n');
                let length = newline.map_or(rest.len(), |newline| fault.at + newline + 1);
                (length, Err(fault))
            }
        };
        match outcome {
            Ok(Line::Blank) => {}
            Ok(Line::Text) => {
                documents += 1;
                lone_surrogates += reader.lone_surrogates;
                if block.text.len() > start {
                    block.fragments.push(Fragment {
                        start,
                        end: block.text.len(),
                        file: lines.file,
                        document: line,
                        ends_document: true,
                    });
                }
            }
            Err(fault) => {
                block.text.truncate(start);
                skip_line(shared, &lines.disk, line, fault)?;
            }
        }
        at += length;
        line += 1;
    }
    add(&shared.tally.documents, documents);
    add(&shared.tally.text_bytes, block.text.len() as u64);
    add(&shared.tally.lone_surrogates, lone_surrogates);
    Ok(())
}

/// A line (from 0, in the part of the file that is read) without text: fails, or with `skip_broken` counts it by its
/// reason.
fn skip_line(shared: &Shared, disk: &Disk, line: u64, fault: Fault) -> Result<()> {
    let number = || -> Result<u64> { Ok(disk.lines_before()? + line + 1) };
    if !shared.options.skip_broken {
        return Err(explain(shared, disk, Some(number()?), fault));
    }
    let counter = match fault.kind {
        FaultKind::Json(_) => &shared.tally.broken_json,
        FaultKind::NotAString => &shared.tally.not_a_string,
        FaultKind::Missing => &shared.tally.missing_field,
    };
    add(counter, 1);
    shared.tally.example(|| {
        // Many parts of a large file may each have such a line: its number is not worth reading the file many times.
        let number = if disk.counts_lines_quickly() { number().ok() } else { None };
        explain(shared, disk, number, fault).cause()
    });
    Ok(())
}

fn explain(shared: &Shared, disk: &Disk, line: Option<u64>, fault: Fault) -> Error {
    let field = &shared.options.text_field;
    let path = disk.path.clone();
    let what = match fault.kind {
        FaultKind::Json(what) => format!("is not valid JSON at byte {} ({what})", fault.column),
        FaultKind::NotAString => format!("does not have a string in the field {field:?}"),
        FaultKind::Missing => {
            return Error::MissingField { path, line, field: field.clone(), found: Vec::new() };
        }
    };
    Error::Broken { path, line, what }
}
