//! Byte order marks, encodings, sizes, and files that change while they are read.

use super::damage::{read_strictly, single};
use super::*;
use crate::error::Error;

#[test]
fn a_byte_order_mark_is_dropped_once() {
    for (format, bytes, wanted) in [
        (Format::Text, "\u{FEFF}\u{FEFF}text", "\u{FEFF}text"),
        (Format::Text, "\u{FEFF}", ""),
        (Format::Jsonl, "\u{FEFF}{\"text\":\"\u{FEFF}a\"}", "\u{FEFF}a"),
    ] {
        let corpus = single(bytes.as_bytes(), format, Compression::None);
        assert_eq!(read_strictly(&corpus, "text").unwrap(), wanted);
    }
}

#[test]
fn utf_16_is_rejected_with_advice() {
    for bytes in [&b"\xff\xfea\0b\0"[..], b"\xfe\xff\0a\0b"] {
        let corpus = single(bytes, Format::Text, Compression::None);
        let error = read_strictly(&corpus, "text").unwrap_err();
        assert!(matches!(error, Error::NotUtf8 { encoding: "UTF-16", .. }));
        assert!(error.to_string().contains("iconv -f UTF-16 -t UTF-8"));
        let sources = sources(&corpus, 1, 100);
        assert!(read_all(&sources).is_empty());
        assert_eq!(sources.counters().broken_files, 1);
        assert_eq!(sources.counters().bytes_on_disk, 6);
    }
}

#[test]
fn empty_files_are_read() {
    let corpus = single(b"", Format::Text, Compression::None);
    let whole = sources(&corpus, 1, 100);
    assert!(read_all(&whole).is_empty());
    assert_eq!((whole.counters().files, whole.counters().documents), (1, 1));
    let corpus = single(b"", Format::Jsonl, Compression::None);
    let lines = sources(&corpus, 1, 100);
    assert!(read_all(&lines).is_empty());
    assert_eq!((lines.counters().files, lines.counters().documents), (1, 0));
}

#[test]
fn changed_files_are_noticed() {
    let mut corpus = single(b"twelve bytes", Format::Text, Compression::None);
    for (size, wanted) in [(5, "has grown from 5 to 12 bytes"), (50, "has shrunk from 50 to 12 bytes")] {
        corpus.specs[0].size = Some(size);
        let error = read_strictly(&corpus, "text").unwrap_err();
        assert!(matches!(error, Error::Changed { .. }));
        assert!(error.to_string().contains(wanted), "{error}");
    }
    std::fs::remove_file(&corpus.specs[0].path).unwrap();
    let error = read_strictly(&corpus, "text").unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error:?}");

    let folder = FileSpec { path: corpus.folder.path().into(), size: None, ..corpus.specs[0].clone() };
    corpus.specs = vec![folder];
    let error = read_strictly(&corpus, "text").unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
}

#[test]
fn changes_while_reading_are_noticed() {
    let words = "word ".repeat(1000);
    for compression in [Compression::None, Compression::Gz] {
        for grow in [true, false] {
            let bytes = oracle::compress(words.as_bytes(), compression);
            let corpus = single(&bytes, Format::Text, compression);
            let sources = sources(&corpus, 1, 64);
            let mut block = Block::new();
            assert!(sources.next_block(0, &mut block).unwrap());
            let file = std::fs::OpenOptions::new().write(true).open(&corpus.specs[0].path).unwrap();
            file.set_len(if grow { bytes.len() as u64 + 10 } else { 30 }).unwrap();
            let error = loop {
                match sources.next_block(0, &mut block) {
                    Ok(true) => {}
                    Ok(false) => panic!("the change was not noticed"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Changed { .. }), "{error:?}");
        }
    }
}

#[test]
fn text_without_a_place_to_cut_is_cut_anyway() {
    let text = "é".repeat(5000);
    let corpus = single(text.as_bytes(), Format::Text, Compression::None);
    let sources = sources(&corpus, 1, 64);
    let mut block = Block::new();
    let mut largest = 0;
    let mut read = String::new();
    while sources.next_block(0, &mut block).unwrap() {
        block.iter().for_each(|(_, part)| read.push_str(part));
        largest = largest.max(block.text.len());
    }
    assert_eq!(read, text);
    assert_eq!(largest, 8 * 64);
}

#[test]
fn short_lines_do_not_make_a_block_large() {
    let bytes = "a\n".repeat(10_000);
    let mut corpus = single(bytes.as_bytes(), Format::Text, Compression::None);
    corpus.documents = Documents::Line;
    let sources = sources(&corpus, 1, 3200);
    let mut block = Block::new();
    while sources.next_block(0, &mut block).unwrap() {
        assert!(block.fragments.len() <= 100);
    }
    assert_eq!(sources.counters().documents, 10_000);
}

#[test]
fn temporary_files_are_removed() {
    let line = format!("{{\"meta\": {{\"text\": \"{}\"}}}}\n", "long ".repeat(1000));
    let corpus = single(line.as_bytes(), Format::Jsonl, Compression::None);
    let sources = sources(&corpus, 1, 100);
    let mut block = Block::new();
    assert!(sources.next_block(0, &mut block).unwrap());
    drop(sources);
    let spill = corpus.folder.path().join("spill");
    assert_eq!(std::fs::read_dir(spill).unwrap().count(), 0);
}

#[test]
fn an_error_from_the_file_list_is_passed_on() {
    let next = || Err(Error::Cancelled);
    let sources = Sources::new(Box::new(next), 2, ReadOptions::default()).unwrap();
    let mut block = Block::new();
    assert!(matches!(sources.next_block(1, &mut block), Err(Error::Cancelled)));
    assert!(!sources.next_block(0, &mut block).unwrap());
}
