//! The encoder and its streams as Python classes.

use super::{Stash, guarded, pattern, raise, watcher};
use crate::bpe::Rules;
use crate::encode::{self, Batch, Bpe, Id, Model, encode_batch};
use crate::error::{Error, Result};
use crate::pairs::NONE;
use crate::specials::Specials;
use crate::split::floor;
use numpy::{Element, PyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Text -> ids. Built by `ramlet.Tokenizer`, which reads the files; safe to use from many threads.
#[pyclass(frozen)]
pub struct Encoder {
    shared: Arc<Shared>,
}

pub struct Shared {
    encoder: encode::Encoder,
    tokens: TokenBytes,
}

/// The bytes of every id, for decoding; empty if an id is unused. All in one buffer: a box per token would take ten
/// times the memory of a single character.
struct TokenBytes {
    row: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenBytes {
    fn new<'a>(tokens: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut row, mut ends) = (Vec::new(), Vec::new());
        for token in tokens {
            row.extend_from_slice(token);
            ends.push(row.len() as u32);
        }
        TokenBytes { row, ends }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, id: usize) -> Option<&[u8]> {
        let end = *self.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.row[start as usize..end as usize])
    }
}

impl Shared {
    pub fn encoder(&self) -> &encode::Encoder {
        &self.encoder
    }

    /// Appends the bytes of the tokens.
    pub fn decode(&self, ids: &[u32], bytes: &mut Vec<u8>) -> Result<()> {
        for &id in ids {
            let token = self.tokens.get(id as usize).ok_or_else(|| {
                let last = self.tokens.len() - 1;
                Error::Invalid(format!("unknown token id {id}: the largest is {last}"))
            })?;
            bytes.extend_from_slice(token);
        }
        Ok(())
    }

    fn encode(
        &self,
        text: &str,
        specials: &Specials,
        ids: &[u32],
        cap: usize,
        stash: &Stash,
    ) -> Result<Vec<u32>> {
        let watch = &mut watcher(stash, None);
        let batch = encode_batch::<u32>(&self.encoder, &[text], specials, ids, cap, 1, watch)?;
        Ok(batch.ids)
    }

    pub fn stable_prefix_plain(&self, text: &str) -> usize {
        self.encoder.stable_prefix(text, &Specials::default(), LONGEST_PIECE)
    }
}

/// In a text that comes in parts, a piece is cut at this length, wherever the parts begin; otherwise one that never ends
/// would stay in memory.
const LONGEST_PIECE: usize = 1 << 20;

impl Encoder {
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    fn build(
        model: Model,
        tokens: TokenBytes,
        added: &[(String, u32)],
        largest_id: u32,
        cache_bytes: usize,
    ) -> Result<Self> {
        let encoder = encode::Encoder::new(model, added, largest_id, cache_bytes)?;
        Ok(Encoder { shared: Arc::new(Shared { encoder, tokens }) })
    }
}

type Special = (String, u32);

fn specials_of(specials: Vec<Special>) -> Result<(Specials, Vec<u32>)> {
    let (names, ids): (Vec<String>, Vec<u32>) = specials.into_iter().unzip();
    Ok((Specials::new(&names)?, ids))
}

#[pymethods]
impl Encoder {
    /// `tokens[id]` are the token's bytes (None: no such id); `merges` are (left id, right id, merged
    /// id) by rank, or each ranked by its merged id (`rank_by_id`, as in a tiktoken file).
    #[staticmethod]
    #[pyo3(signature = (tokens, merges, *, pattern_name, ignore_merges, rank_by_id, nfc, added, cache_bytes))]
    #[allow(clippy::too_many_arguments)]
    fn bpe(
        py: Python<'_>,
        tokens: &Bound<'_, PyList>,
        merges: Vec<(u32, u32, u32)>,
        pattern_name: &str,
        ignore_merges: bool,
        rank_by_id: bool,
        nfc: bool,
        added: Vec<(String, u32)>,
        cache_bytes: usize,
    ) -> PyResult<Self> {
        guarded(|| {
            let tokens = tokens
                .iter()
                .map(|token| Ok(Box::from(token.extract::<Option<&[u8]>>()?.unwrap_or_default())))
                .collect::<PyResult<Vec<Box<[u8]>>>>()?;
            let mut bytes = [NONE; 256];
            for (id, token) in tokens.iter().enumerate() {
                if let [byte] = **token {
                    bytes[byte as usize] = id as u32;
                }
            }
            let known = |id: u32| (id as usize) < tokens.len();
            if merges.iter().any(|&(left, right, made)| !known(left) || !known(right) || !known(made)) {
                return Err(raise(
                    py,
                    Error::Invalid("a merge refers to an id that is not in the vocabulary".into()),
                ));
            }
            let whole = ignore_merges.then(|| {
                let named = tokens.iter().enumerate().filter(|(_, token)| !token.is_empty());
                named.map(|(id, token)| (token.clone(), id as u32)).collect::<HashMap<_, _>>()
            });
            let rules =
                if rank_by_id { Rules::ranked_by_id(&merges) } else { Rules::new(merges.iter().copied()) };
            let largest = (tokens.len() as u32)
                .saturating_sub(1)
                .max(added.iter().map(|added| added.1).max().unwrap_or(0));
            pattern(pattern_name)
                .and_then(|pattern| {
                    Self::build(
                        Model::Bpe(Box::new(Bpe::new(pattern, bytes, rules, whole, nfc))),
                        TokenBytes::new(tokens.iter().map(|token| &**token)),
                        &added,
                        largest,
                        cache_bytes,
                    )
                })
                .map_err(|error| raise(py, error))
        })
    }

    /// One id per character: `characters` iterates over (character, id). `unknown` is the id of every other character;
    /// without it they are an error.
    #[staticmethod]
    #[pyo3(signature = (characters, unknown, *, added, cache_bytes))]
    fn characters(
        py: Python<'_>,
        characters: &Bound<'_, PyAny>,
        unknown: Option<u32>,
        added: Vec<(String, u32)>,
        cache_bytes: usize,
    ) -> PyResult<Self> {
        guarded(|| {
            let mut ids: Vec<u32> = Vec::new();
            let mut by_id: Vec<Option<char>> = Vec::new();
            for pair in characters.try_iter()? {
                let (character, id): (char, u32) = pair?.extract()?;
                if ids.len() <= character as usize {
                    ids.resize(character as usize + 1, NONE);
                }
                if by_id.len() <= id as usize {
                    by_id.resize(id as usize + 1, None);
                }
                ids[character as usize] = id;
                by_id[id as usize] = Some(character);
            }
            let last = (by_id.len() as u32).saturating_sub(1);
            let largest = added.iter().map(|added| added.1).chain(unknown).fold(last, u32::max);
            by_id.resize(largest as usize + 1, None);
            let mut row = Vec::new();
            let mut ends = Vec::with_capacity(by_id.len());
            for character in by_id {
                if let Some(character) = character {
                    row.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                ends.push(row.len() as u32);
            }
            let tokens = TokenBytes { row, ends };
            Self::build(Model::Characters { ids, unknown }, tokens, &added, largest, cache_bytes)
                .map_err(|error| raise(py, error))
        })
    }

    #[pyo3(signature = (text, specials))]
    fn encode(&self, py: Python<'_>, text: &str, specials: Vec<Special>) -> PyResult<Vec<u32>> {
        guarded(|| {
            let stash = Stash::default();
            let result = py.detach(|| {
                let (specials, ids) = specials_of(specials)?;
                self.shared.encode(text, &specials, &ids, usize::MAX, &stash)
            });
            stash.raise(py, result)
        })
    }

    /// The ids of all texts (str, or UTF-8 as bytes) in one array (uint16 if they fit and `wide` is false, else
    /// uint32), and where each text ends in it as another array (uint64). `parts`: the texts are parts from a `Reader`.
    #[pyo3(signature = (texts, specials, *, threads, wide, parts=false))]
    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Bound<'py, PyAny>>,
        specials: Vec<Special>,
        threads: usize,
        wide: bool,
        parts: bool,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<u64>>)> {
        guarded(|| {
            let texts =
                texts.iter().enumerate().map(|(n, text)| utf8(n, text)).collect::<PyResult<Vec<&str>>>()?;
            let cap = if parts { LONGEST_PIECE } else { usize::MAX };
            let run = Run { shared: &self.shared, texts: &texts, specials, cap, threads };
            let wide = wide || run.specials.iter().any(|&(_, id)| id > u32::from(u16::MAX));
            if wide || !self.shared.encoder.is_narrow() {
                run.arrays::<u32>(py)
            } else {
                run.arrays::<u16>(py)
            }
        })
    }

    /// A stream that encodes one text given in parts.
    #[pyo3(signature = (specials))]
    fn stream(&self, py: Python<'_>, specials: Vec<Special>) -> PyResult<EncodeStream> {
        guarded(|| {
            let (specials, ids) = specials_of(specials).map_err(|error| raise(py, error))?;
            Ok(EncodeStream { shared: self.shared(), specials, ids, held: Mutex::default() })
        })
    }

    /// The bytes of the tokens, concatenated.
    fn decode<'py>(&self, py: Python<'py>, ids: Vec<u32>) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let mut bytes = Vec::with_capacity(ids.len() * 4);
            self.shared.decode(&ids, &mut bytes).map_err(|error| raise(py, error))?;
            Ok(PyBytes::new(py, &bytes))
        })
    }
}

/// A document, without a copy if Python stores it as UTF-8.
fn utf8<'a>(number: usize, text: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    let Ok(bytes) = text.cast::<PyBytes>() else { return text.cast::<PyString>()?.to_str() };
    let bytes = bytes.as_bytes();
    simdutf8::basic::from_utf8(bytes).map_err(|_| {
        let at = simdutf8::compat::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
        let sentence = format!(
            "document {number} of the batch is not UTF-8 at byte {at}: decode it with its own encoding, or with errors=\"replace\""
        );
        raise(text.py(), Error::Invalid(sentence))
    })
}

struct Run<'a> {
    shared: &'a Shared,
    texts: &'a [&'a str],
    specials: Vec<Special>,
    cap: usize,
    threads: usize,
}

impl Run<'_> {
    fn arrays<'py, I: Id + Element>(
        self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<u64>>)> {
        let stash = Stash::default();
        let result = py.detach(|| {
            let (specials, ids) = specials_of(self.specials)?;
            encode_batch::<I>(
                &self.shared.encoder,
                self.texts,
                &specials,
                &ids,
                self.cap,
                self.threads,
                &mut watcher(&stash, None),
            )
        });
        let Batch { ids, ends } = stash.raise(py, result)?;
        Ok((PyArray1::from_vec(py, ids).into_any(), PyArray1::from_vec(py, ends)))
    }
}

/// Keeps back only the text whose ids the next part could still change.
#[pyclass(frozen)]
pub struct EncodeStream {
    shared: Arc<Shared>,
    specials: Specials,
    ids: Vec<u32>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    text: String,
    /// Not checked again before it has this many bytes: checking after every small part would take quadratic time.
    look_at: usize,
}

impl EncodeStream {
    /// How much of `text` can be encoded whatever follows. A piece that never ends is cut, so that it does not fill
    /// the memory.
    fn ready(&self, text: &str) -> usize {
        let encoder = &self.shared.encoder;
        match encoder.stable_prefix(text, &self.specials, LONGEST_PIECE) {
            0 if text.len() > 4 * LONGEST_PIECE => floor(text, 4 * LONGEST_PIECE),
            ready => ready,
        }
    }

    fn take(&self, py: Python<'_>, more: &str, last: bool) -> PyResult<Vec<u32>> {
        let stash = Stash::default();
        let result = py.detach(|| {
            let mut held = self.held.lock().unwrap();
            held.text.push_str(more);
            if !last && held.text.len() < held.look_at {
                return Ok(Vec::new());
            }
            let ready = if last { held.text.len() } else { self.ready(&held.text) };
            let ids =
                self.shared.encode(&held.text[..ready], &self.specials, &self.ids, LONGEST_PIECE, &stash)?;
            held.text.drain(..ready);
            held.look_at = held.text.len() + held.text.len() / 4;
            Ok(ids)
        });
        stash.raise(py, result)
    }
}

#[pymethods]
impl EncodeStream {
    fn push(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        guarded(|| self.take(py, text, false))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        guarded(|| self.take(py, "", true))
    }
}
