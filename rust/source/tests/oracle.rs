//! Random files of every kind, with what simple reading of them gives.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::*;
use crate::source::utf8::count_invalid;

#[derive(Debug)]
pub struct Corpus {
    pub folder: tempfile::TempDir,
    pub specs: Vec<FileSpec>,
    pub documents: Documents,
    pub expected: Read,
    pub counters: Counters,
}

/// The content of one file, before it is written.
#[derive(Clone, Debug)]
pub enum Content {
    Text(Vec<u8>),
    Jsonl(Vec<JsonlLine>),
    Parquet(Vec<Option<Vec<u8>>>),
}

#[derive(Clone, Debug)]
pub struct JsonlLine {
    bytes: Vec<u8>,
    outcome: Outcome,
    invalid: u64,
}

#[derive(Clone, Debug)]
enum Outcome {
    Text(String, u64),
    Blank,
    Json,
    Missing,
    NotAString,
}

pub fn corpora() -> impl Strategy<Value = Corpus> {
    let documents = prop_oneof![
        Just(Documents::File),
        Just(Documents::Line),
        Just(Documents::Separator("<|end|>".into())),
        Just(Documents::Separator("aab".into())),
        Just(Documents::Separator("é".into())),
    ];
    let files = prop::collection::vec((contents(), compressions()), 0..5);
    (documents, files).prop_map(|(documents, files)| Corpus::write(documents, files))
}

fn compressions() -> impl Strategy<Value = Compression> {
    use Compression::*;
    prop_oneof![4 => Just(None), 1 => Just(Gz), 1 => Just(Zst), 1 => Just(Xz), 1 => Just(Bz2)]
}

fn contents() -> impl Strategy<Value = Content> {
    let values = prop::collection::vec(prop::option::weighted(0.8, text_bytes(6)), 0..40);
    prop_oneof![
        3 => text_bytes(120).prop_map(Content::Text),
        3 => prop::collection::vec(jsonl_lines(), 0..30).prop_map(Content::Jsonl),
        1 => values.prop_map(Content::Parquet),
    ]
}

/// Text with everything that can go wrong at the end of a block.
pub fn text_bytes(parts: usize) -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => "[a-c ]{1,12}".prop_map(String::into_bytes),
        2 => prop::sample::select(vec!["\n", "\r\n", "\r", "\n\n", "\0", "<|end|>", "<|en", "aab", "aa", "é", "漢字", "😀"])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::sample::select(vec![&b"\xff"[..], b"\xe6\xbc", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc3", b"\x80"])
            .prop_map(<[u8]>::to_vec),
        1 => (1usize..300).prop_map(|length| vec![b'x'; length]),
    ];
    // An ordinary first byte: byte order marks have tests of their own.
    prop::collection::vec(part, 0..parts).prop_map(|parts| {
        let mut bytes = parts.concat();
        if matches!(bytes.first(), Some(0xFE | 0xFF | 0xEF | 0)) {
            bytes.insert(0, b'a');
        }
        bytes
    })
}

/// Lines of every outcome, the last of which may lack its line end.
pub fn jsonl_bytes() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(jsonl_lines(), 0..30), any::<bool>()).prop_map(|(lines, ended)| {
        let lines: Vec<Vec<u8>> = lines.into_iter().map(|line| line.bytes).collect();
        let mut bytes = lines.join(&b'\n');
        bytes.extend(ended.then_some(b'\n'));
        bytes
    })
}

fn jsonl_lines() -> impl Strategy<Value = JsonlLine> {
    let filler = prop_oneof![3 => Just(0usize), 1 => 1usize..400];
    (text_bytes(8), filler, any::<bool>(), 0u8..12).prop_map(|(bytes, filler, escape, kind)| {
        let bytes: Vec<u8> = bytes.into_iter().filter(|&byte| byte >= 0x20).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let invalid = count_invalid(&bytes);
        let other = "y".repeat(filler);
        let wrap =
            |before: &str, inside: &[u8], after: &str| [before.as_bytes(), inside, after.as_bytes()].concat();
        let outcome = |text: String| Outcome::Text(text, 0);
        match kind {
            0 => JsonlLine { bytes: b" \t".to_vec(), outcome: Outcome::Blank, invalid: 0 },
            1 => JsonlLine {
                bytes: wrap("{\"meta\": {\"text\": \"", &bytes, "\""),
                outcome: Outcome::Json,
                invalid,
            },
            2 => {
                JsonlLine { bytes: wrap("{\"text\": \"", &bytes, "\"}"), outcome: Outcome::Missing, invalid }
            }
            3 => JsonlLine {
                bytes: wrap("{\"meta.text\":[\"", &bytes, "\"]}"),
                outcome: Outcome::NotAString,
                invalid,
            },
            4 => JsonlLine {
                bytes: br#"{"meta.text": "a\ud800b\n"}"#.to_vec(),
                outcome: Outcome::Text("a\u{FFFD}b\n".into(), 1),
                invalid: 0,
            },
            _ if escape => JsonlLine {
                bytes: serde_json::json!({"a": other, "meta": {"text": format!("{text}\n\"\u{1}")}})
                    .to_string()
                    .into_bytes(),
                outcome: outcome(format!("{text}\n\"\u{1}")),
                invalid: 0,
            },
            _ => JsonlLine {
                bytes: wrap("{\"meta\": {\"text\": \"", &bytes, &format!("\"}}, \"b\": \"{other}\"}}\r")),
                outcome: outcome(text),
                invalid,
            },
        }
    })
}

impl Corpus {
    pub fn write(documents: Documents, files: Vec<(Content, Compression)>) -> Corpus {
        let folder = tempfile::tempdir().unwrap();
        let mut corpus = Corpus {
            specs: Vec::new(),
            expected: Read::new(),
            counters: Counters::default(),
            documents,
            folder,
        };
        for (file, (content, compression)) in files.into_iter().enumerate() {
            let path = corpus.folder.path().join(format!("{file}"));
            let (format, plain) = match content {
                Content::Text(bytes) => (Format::Text, corpus.expect_text(file as u64, bytes)),
                Content::Jsonl(lines) => (Format::Jsonl, corpus.expect_jsonl(file as u64, &path, lines)),
                Content::Parquet(rows) => (Format::Parquet, corpus.expect_parquet(file as u64, &rows)),
            };
            let compressed = compress(&plain, compression);
            std::fs::write(&path, &compressed).unwrap();
            corpus.counters.files += 1;
            corpus.counters.bytes_on_disk += compressed.len() as u64;
            corpus.specs.push(FileSpec {
                path,
                format,
                compression,
                size: Some(compressed.len() as u64),
                modified: None,
                range: None,
            });
        }
        corpus
    }

    fn expect_text(&mut self, file: u64, bytes: Vec<u8>) -> Vec<u8> {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.counters.invalid_utf8 += count_invalid(&bytes);
        let mut documents: Vec<&str> = match &self.documents {
            Documents::File => vec![&text],
            Documents::Line => text.split('\n').collect(),
            Documents::Separator(separator) => text.split(separator.as_str()).collect(),
        };
        if self.documents != Documents::File && documents.last() == Some(&"") {
            documents.pop();
        }
        let ended_lines = text.matches('\n').count();
        for (ordinal, document) in documents.into_iter().enumerate() {
            let strip = self.documents == Documents::Line && ordinal < ended_lines;
            let document = if strip { document.strip_suffix('\r').unwrap_or(document) } else { document };
            self.expect(file, ordinal as u64, document);
        }
        bytes
    }

    fn expect_jsonl(&mut self, file: u64, path: &Path, lines: Vec<JsonlLine>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (ordinal, line) in lines.into_iter().enumerate() {
            bytes.extend_from_slice(&line.bytes);
            bytes.push(b'\n');
            self.counters.invalid_utf8 += line.invalid;
            let place = format!("{}:{}", path.display(), ordinal + 1);
            let example = match line.outcome {
                Outcome::Blank => continue,
                Outcome::Text(text, lone) => {
                    self.counters.lone_surrogates += lone;
                    self.expect(file, ordinal as u64, &text);
                    continue;
                }
                Outcome::Json => {
                    self.counters.broken_json += 1;
                    // The column is in characters after replacing.
                    let column = String::from_utf8_lossy(&line.bytes).len() + 1;
                    format!("{place} is not valid JSON at byte {column} (unexpected end of the line)")
                }
                Outcome::Missing => {
                    self.counters.missing_field += 1;
                    format!("{place} has no field \"meta.text\"")
                }
                Outcome::NotAString => {
                    self.counters.not_a_string += 1;
                    format!("{place} does not have a string in the field \"meta.text\"")
                }
            };
            if self.counters.examples.len() < 8 {
                self.counters.examples.push(example);
            }
        }
        // The last line may lack its line end.
        if bytes.len() % 2 == 0 {
            bytes.pop();
        }
        bytes
    }

    fn expect_parquet(&mut self, file: u64, rows: &[Option<Vec<u8>>]) -> Vec<u8> {
        for (ordinal, row) in rows.iter().enumerate() {
            let Some(row) = row else {
                self.counters.null_text += 1;
                continue;
            };
            self.counters.invalid_utf8 += count_invalid(row);
            self.expect(file, ordinal as u64, &String::from_utf8_lossy(row));
        }
        parquet_file(rows)
    }

    fn expect(&mut self, file: u64, ordinal: u64, text: &str) {
        self.counters.documents += 1;
        self.counters.text_bytes += text.len() as u64;
        if !text.is_empty() {
            self.expected.insert((file, ordinal), text.to_owned());
        }
    }
}

/// Columns `id` and `meta.text`, in row groups of 7 and pages of about 3 rows.
pub fn parquet_file(rows: &[Option<Vec<u8>>]) -> Vec<u8> {
    let schema = "message table { required binary id; optional group meta { optional binary text (UTF8); } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(::parquet::basic::Compression::SNAPPY)
        .set_data_page_row_count_limit(3)
        .set_write_batch_size(1)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    for rows in rows.chunks(7) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<ByteArray> = rows.iter().map(|_| ByteArray::from("x")).collect();
        column.typed::<ByteArrayType>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = rows.iter().map(|row| if row.is_some() { 2 } else { 1 }).collect();
        let values: Vec<ByteArray> = rows.iter().flatten().map(|row| ByteArray::from(row.clone())).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Compresses as two members, frames or streams, like concatenated archives.
pub fn compress(bytes: &[u8], compression: Compression) -> Vec<u8> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let one = |part: &[u8]| -> Vec<u8> {
        match compression {
            Compression::None => part.to_vec(),
            Compression::Gz => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(part).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Zst => zstd::stream::encode_all(part, 1).unwrap(),
            Compression::Xz => {
                let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
                encoder.write_all(part).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Bz2 => {
                let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
                encoder.write_all(part).unwrap();
                encoder.finish().unwrap()
            }
        }
    };
    [one(first), one(second)].concat()
}
