//! Damaged content: reported with an error, or counted and skipped.

use super::oracle::{compress, parquet_file};
use super::*;
use crate::error::Error;

const COMPRESSED: [Compression; 4] = [Compression::Gz, Compression::Zst, Compression::Xz, Compression::Bz2];

/// One file with this content on disk.
pub fn single(bytes: &[u8], format: Format, compression: Compression) -> Corpus {
    let mut corpus = Corpus::write(Documents::File, vec![]);
    let path = corpus.folder.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    corpus.specs.push(FileSpec {
        path,
        format,
        compression,
        size: Some(bytes.len() as u64),
        modified: None,
        range: None,
    });
    corpus
}

/// The text of all documents, or the first error.
pub fn read_strictly(corpus: &Corpus, field: &str) -> Result<String, Error> {
    let mut files = corpus.specs.clone().into_iter();
    let options = ReadOptions {
        documents: corpus.documents.clone(),
        text_field: field.into(),
        spill_dir: corpus.folder.path().into(),
        ..ReadOptions::default()
    };
    let sources = Sources::new(Box::new(move || Ok(files.next())), 1, options)?;
    let (mut block, mut text) = (Block::new(), String::new());
    loop {
        match sources.next_block(0, &mut block) {
            Ok(true) => block.iter().for_each(|(_, part)| text.push_str(part)),
            Ok(false) => return Ok(text),
            Err(error) => {
                assert!(sources.position().is_none(), "no position after an error");
                assert!(!sources.next_block(0, &mut block).unwrap());
                return Err(error);
            }
        }
    }
}

/// Text that does not compress well, so that archives are more than a header.
fn noise(length: usize) -> String {
    let mut state = 1u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b' ' + (state >> 24) as u8 % 90)
    };
    (0..length).map(|_| letter()).collect()
}

#[test]
fn truncated_archives_are_reported_or_used_up_to_their_end() {
    let text = noise(700_000);
    for compression in COMPRESSED {
        let compressed = compress(text.as_bytes(), compression);
        for keep in [0, 1, 3, 9, compressed.len() / 4, compressed.len() * 3 / 4, compressed.len() - 1] {
            let corpus = single(&compressed[..keep], Format::Text, compression);
            let error = read_strictly(&corpus, "text").unwrap_err();
            assert!(matches!(error, Error::Broken { .. }), "{compression:?} {keep}: {error:?}");
            let wanted = if keep == 0 { "is empty" } else { "ends in the middle" };
            assert!(error.to_string().contains(wanted), "{compression:?} {keep}: {error}");

            let reads: Vec<Read> = [1000, 1 << 20]
                .map(|block_bytes| {
                    let sources = sources(&corpus, 1, block_bytes);
                    let read = read_all(&sources);
                    let counters = sources.counters();
                    assert_eq!((counters.broken_files, counters.files), (1, 1));
                    assert_eq!(counters.bytes_on_disk, keep as u64);
                    assert_eq!(counters.examples.len(), 1);
                    read
                })
                .into();
            assert_eq!(reads[0], reads[1], "what is used depends on the block size");
            let used = reads[0].get(&(0, 0)).map_or("", |text| text);
            assert!(text.starts_with(used));
            // The first half is an archive of its own; bzip2 returns blocks of 100 KB or nothing.
            if keep > compressed.len() / 2 {
                assert!(used.len() >= text.len() / 2, "{compression:?} {keep}");
            }
        }
    }
}

#[test]
fn padding_after_gzip_members_is_not_damage() {
    let mut compressed = compress(b"some text", Compression::Gz);
    compressed.extend([0; 1000]);
    let corpus = single(&compressed, Format::Text, Compression::Gz);
    assert_eq!(read_strictly(&corpus, "text").unwrap(), "some text");
    compressed.extend(b"junk");
    let corpus = single(&compressed, Format::Text, Compression::Gz);
    assert!(matches!(read_strictly(&corpus, "text"), Err(Error::Broken { .. })));
}

#[test]
fn a_window_above_the_limit_is_rejected() {
    use std::io::Write;
    let text = noise(3 << 20);
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.write_all(text.as_bytes()).unwrap();
    let zst = encoder.finish().unwrap();
    let xz = {
        let mut options = liblzma::stream::LzmaOptions::new_preset(0).unwrap();
        options.dict_size(256 << 20);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        let check = liblzma::stream::Check::Crc32;
        let stream = liblzma::stream::Stream::new_stream_encoder(&filters, check).unwrap();
        let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(b"small").unwrap();
        encoder.finish().unwrap()
    };
    for (compressed, compression) in [(zst, Compression::Zst), (xz, Compression::Xz)] {
        let corpus = single(&compressed, Format::Text, compression);
        let error = read_strictly(&corpus, "text").unwrap_err();
        assert!(matches!(error, Error::Window { .. }), "{compression:?}: {error:?}");
    }
}

#[test]
fn broken_lines_stop_the_run_with_their_number() {
    let good = "{\"text\": \"a b\"}\n".repeat(5000);
    for (bad, wanted) in [
        ("{\"text\": \"a\n", "file:5002 is not valid JSON at byte 12 (the line ends inside a string)"),
        ("{\"text\": 1}\n", "file:5002 does not have a string in the field \"text\""),
        ("{\"txt\": \"\"}\n", "file:5002 has no field \"text\""),
        ("hello\n", "file:5002 is not valid JSON at byte 1 (not an object)"),
    ] {
        let bytes = format!("{good}\n{bad}{good}");
        let corpus = single(bytes.as_bytes(), Format::Jsonl, Compression::None);
        let error = read_strictly(&corpus, "text").unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");

        // The number is just as exact if many workers share the file.
        let mut files = corpus.specs.clone().into_iter();
        let options = ReadOptions { block_bytes: 500, ..ReadOptions::default() };
        let sources = Sources::new(Box::new(move || Ok(files.next())), 1, options).unwrap();
        let errors = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (sources, errors) = (&sources, &errors);
                scope.spawn(move || {
                    let mut block = Block::new();
                    loop {
                        match sources.next_block(worker, &mut block) {
                            Ok(true) => {}
                            Ok(false) => break,
                            Err(error) => errors.lock().unwrap().push(error.to_string()),
                        }
                    }
                });
            }
        });
        let errors = errors.into_inner().unwrap();
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{errors:?}");
    }
}

#[test]
fn a_parquet_error_lists_the_columns() {
    let corpus = single(&parquet_file(&[Some(b"a".to_vec())]), Format::Parquet, Compression::None);
    assert_eq!(read_strictly(&corpus, "meta.text").unwrap(), "a");
    let error = read_strictly(&corpus, "text").unwrap_err().to_string();
    assert!(error.contains("has no field \"text\" (it has id, meta.text)"), "{error}");
    let corpus = single(b"PAR1 not really", Format::Parquet, Compression::None);
    assert!(matches!(read_strictly(&corpus, "text"), Err(Error::Broken { .. })));
    let compressed = compress(&parquet_file(&[Some(b"a".to_vec())]), Compression::Gz);
    let corpus = single(&compressed[..compressed.len() - 20], Format::Parquet, Compression::Gz);
    assert!(matches!(read_strictly(&corpus, "meta.text"), Err(Error::Broken { .. })));
    assert_eq!(read_all(&sources(&corpus, 1, 100)).len(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn damage_never_panics(
        format in prop::sample::select(vec![Format::Text, Format::Jsonl, Format::Parquet]),
        compression in prop::sample::select(vec![Compression::None, Compression::Gz, Compression::Zst, Compression::Xz, Compression::Bz2]),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let rows: Vec<Option<Vec<u8>>> = (0..30).map(|row| Some(noise(row * 3).into_bytes())).collect();
        let plain = match format {
            Format::Text => noise(2000).into_bytes(),
            Format::Jsonl => "{\"meta\": {\"text\": \"some text\"}, \"id\": 1.5e3}\n".repeat(40).into_bytes(),
            Format::Parquet => parquet_file(&rows),
        };
        let mut bytes = compress(&plain, compression);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let corpus = single(&bytes, format, compression);
        let _ = read_strictly(&corpus, "meta.text");
        // Skipping the damage still reaches the end, with every byte of the file counted.
        let sources = sources(&corpus, 1, 64);
        let mut block = Block::new();
        loop {
            match sources.next_block(0, &mut block) {
                Ok(true) => {}
                Ok(false) => {
                    prop_assert_eq!(sources.counters().bytes_on_disk, bytes.len() as u64);
                    prop_assert_eq!(sources.counters().files, 1);
                    break;
                }
                Err(Error::Window { .. } | Error::MissingField { .. } | Error::Invalid(_)) => break,
                Err(error) => prop_assert!(false, "{error:?}"),
            }
        }
    }
}
