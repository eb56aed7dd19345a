//! Parts of files: which documents belong to a part, however a file is divided.
//!
//! A document belongs to the part in which it begins. Both ends of a part are moved to the next place where a document
//! begins, by the same rule, so adjacent parts cover the file without gaps or overlaps. To find such a place, only
//! bytes from shortly before the end on are read; at each such place, UTF-8 decoding can start without changing the
//! text.

use std::fs::File;
use std::io;
use std::ops;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::scan::{count_byte, find_byte};
use super::text::Boundary;
use super::{Compression, Documents, Format};

/// How far to search for a line end at which to cut a text file that is one document.
const REACH: u64 = 1 << 20;
const CHUNK: usize = 64 << 10;

/// A part of a file that is not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Range {
    /// The documents of a text or jsonl file that begin in `start..end`. A text file that is one document is cut into
    /// several, at line ends if there are any.
    Bytes { start: u64, end: u64 },
    /// Of a parquet file: `first..end`.
    RowGroups { first: usize, end: usize },
}

impl Range {
    pub(super) fn begins_file(&self) -> bool {
        matches!(self, Range::Bytes { start: 0, .. } | Range::RowGroups { first: 0, .. })
    }
}

/// Whether files of this kind can be read in part: parquet by row groups, the others by bytes.
///
/// Separators that can overlap themselves, like "\n\n" in "\n\n\n", can only be found from the start of the file. So
/// can those that decoding may add or remove: U+FFFD replaces invalid bytes, U+FEFF is dropped at the start.
pub fn can_split(documents: &Documents, format: Format, compression: Compression) -> bool {
    let by_documents = match (format, documents) {
        (Format::Text, Documents::Separator(separator)) => {
            let bytes = separator.as_bytes();
            let has_border = (1..bytes.len()).any(|length| bytes.ends_with(&bytes[..length]));
            !bytes.is_empty() && !has_border && !separator.contains(['\u{FFFD}', '\u{FEFF}'])
        }
        _ => true,
    };
    compression == Compression::None && by_documents
}

/// Moves both ends of `start..end` of a text or jsonl file to where documents begin.
///
/// The end of a document longer than many parts is searched for only once, by the part in which it begins: the others
/// search no further than their own end.
pub(super) fn align(file: &File, boundary: &Boundary, start: u64, end: u64) -> io::Result<ops::Range<u64>> {
    align_within(file, boundary, start, end, REACH)
}

fn align_within(
    file: &File,
    boundary: &Boundary,
    start: u64,
    end: u64,
    reach: u64,
) -> io::Result<ops::Range<u64>> {
    let length = file.metadata()?.len();
    // The first document that begins at or after `at`, before `until`.
    let begin = |at: u64, until: u64| {
        let newline = |bytes: &[u8]| find_byte(bytes, 0, b'\n');
        match boundary {
            _ if at == 0 => Ok(Some(0)),
            _ if at >= length => Ok(None),
            Boundary::End => {
                let line = find(file, at - 1, length.min(at - 1 + reach), 1, newline)?;
                line.map_or_else(|| character(file, at, length), Ok).map(Some)
            }
            Boundary::Line => find(file, at - 1, until - 1, 1, newline),
            Boundary::Separator { separator, finder } => {
                let from = at.saturating_sub(separator.len() as u64);
                let locate = |bytes: &[u8]| Some(finder.find(bytes)?.start());
                find(file, from, until - 1, separator.len(), locate)
            }
        }
    };
    match begin(start, end.min(length))? {
        Some(start) => Ok(start..begin(end, length)?.unwrap_or(length)),
        None => Ok(end..end),
    }
}

/// The end of the first match of `locate`, which is `width` bytes long, if all of it is in `from..until`.
fn find(
    file: &File,
    mut from: u64,
    until: u64,
    width: usize,
    locate: impl Fn(&[u8]) -> Option<usize>,
) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; CHUNK + width];
    // Bytes at the start of the buffer that may begin a match that ends in the next chunk.
    let mut kept = 0;
    while from < until {
        let most = (buffer.len() - kept).min(usize::try_from(until - from).unwrap_or(usize::MAX));
        let read = read_at(file, &mut buffer[kept..kept + most], from)?;
        if read == 0 {
            break;
        }
        let there = kept + read;
        if let Some(at) = locate(&buffer[..there]) {
            return Ok(Some(from - kept as u64 + (at + width) as u64));
        }
        from += read as u64;
        kept = there.min(width - 1);
        buffer.copy_within(there - kept..there, 0);
    }
    Ok(None)
}

/// The first place at or after `at` where decoding may begin: no character is longer than four bytes, so at most three
/// continuation bytes have to be skipped.
fn character(file: &File, at: u64, length: u64) -> io::Result<u64> {
    let mut bytes = [0; 3];
    let read = read_at(file, &mut bytes, at)?;
    let inside = bytes[..read].iter().take_while(|&&byte| byte & 0xC0 == 0x80).count();
    Ok(length.min(at + inside as u64))
}

/// The number of line ends before `until`.
pub(super) fn count_lines(file: &File, until: u64) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let (mut at, mut lines) = (0, 0);
    while at < until {
        let most = buffer.len().min(usize::try_from(until - at).unwrap_or(usize::MAX));
        let read = read_at(file, &mut buffer[..most], at)?;
        if read == 0 {
            break;
        }
        lines += count_byte(&buffer[..read], b'\n') as u64;
        at += read as u64;
    }
    Ok(lines)
}

/// Fills the buffer up to the end of the file, without changing the file position.
pub(super) fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn on_disk(bytes: &[u8]) -> File {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        #[test]
        fn whole_files_are_cut_where_decoding_may_begin(
            bytes in prop::collection::vec(prop_oneof![
                any::<u8>(), Just(0xE2), Just(0x82), Just(0xAC), Just(0xF0), Just(0x9F), Just(0x98), Just(0x80), Just(b'\n')
            ], 1..80),
            mut edges in prop::collection::vec(0u64..80, 0..10),
            reach in 1u64..10,
        ) {
            let file = on_disk(&bytes);
            let size = bytes.len() as u64;
            edges.retain(|&edge| edge < size);
            edges.extend([0, size]);
            edges.sort_unstable();
            edges.dedup();
            let (mut text, mut done) = (String::new(), 0);
            for edge in edges.windows(2) {
                let part = align_within(&file, &Boundary::End, edge[0], edge[1], reach).unwrap();
                if part.is_empty() {
                    continue;
                }
                prop_assert_eq!(part.start, done);
                prop_assert!(part.start >= edge[0]);
                done = part.end;
                let piece = &bytes[part.start as usize..part.end as usize];
                let follows = &bytes[edge[1] as usize - 1..];
                let near = follows.iter().take(reach as usize).any(|&byte| byte == b'\n');
                prop_assert!(!near || edge[1] == size || piece.ends_with(b"\n"));
                text.push_str(&String::from_utf8_lossy(piece));
            }
            prop_assert_eq!(done, size);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn separators_are_found_across_chunks(before in CHUNK - 40..CHUNK + 40, at in 1u64..200, lines in 0usize..3) {
            let separator = "<|end|>";
            let bytes = ["x".repeat(before), separator.into(), "\n".repeat(lines), "y".repeat(100)].concat();
            let file = on_disk(bytes.as_bytes());
            let boundary = Boundary::new(&Documents::Separator(separator.into())).unwrap();
            let size = bytes.len() as u64;
            let next = (before + separator.len()) as u64;
            prop_assert_eq!(align(&file, &boundary, 0, at).unwrap(), 0..next);
            prop_assert_eq!(align(&file, &boundary, at, size).unwrap(), next..size);
            prop_assert_eq!(align(&file, &boundary, next, size).unwrap(), next..size);
            prop_assert!(align(&file, &boundary, at, next).unwrap().is_empty());
            prop_assert!(align(&file, &boundary, next + 1, size).unwrap().is_empty());
            prop_assert_eq!(count_lines(&file, size).unwrap(), lines as u64);
            prop_assert_eq!(count_lines(&file, next + 1).unwrap(), lines.min(1) as u64);
        }
    }
}
