//! Searching for single bytes, eight at a time in a register. Hits are often close together here (lines of code,
//! escapes in JSON), where a call to a vectorized search costs more than it saves.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The first byte equal to `byte` at or after `from`.
#[inline]
pub(super) fn find_byte(bytes: &[u8], from: usize, byte: u8) -> Option<usize> {
    find(bytes, from, |word| equal(word, byte), |candidate| candidate == byte)
}

/// The first byte at or after `from` that ends a plain run inside a JSON string: a quote, a backslash or a control
/// character.
#[inline]
pub(super) fn find_special(bytes: &[u8], from: usize) -> Option<usize> {
    find(
        bytes,
        from,
        |word| {
            let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
            control | equal(word, b'"') | equal(word, b'\\')
        },
        |byte| byte < 0x20 || byte == b'"' || byte == b'\\',
    )
}

/// How often `byte` occurs.
pub(super) fn count_byte(bytes: &[u8], byte: u8) -> usize {
    // Sums of at most 255 ones fit into a byte, which the compiler vectorizes.
    let ones = |chunk: &[u8]| -> u8 { chunk.iter().map(|&other| u8::from(other == byte)).sum() };
    bytes.chunks(255).map(|chunk| usize::from(ones(chunk))).sum()
}

/// Sets the high bit of each byte of `word` that equals `byte`. A borrow can also mark bytes above the first hit, never
/// below it.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    let difference = word ^ (ONES * u64::from(byte));
    difference.wrapping_sub(ONES) & !difference & HIGHS
}

#[inline]
fn find(bytes: &[u8], from: usize, marks: impl Fn(u64) -> u64, is_hit: impl Fn(u8) -> bool) -> Option<usize> {
    let mut at = from;
    while let Some(word) = bytes.get(at..at + 8) {
        let marked = marks(u64::from_le_bytes(word.try_into().expect("8 bytes")));
        if marked != 0 {
            return Some(at + marked.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let tail = bytes.get(at..)?;
    Some(at + tail.iter().position(|&byte| is_hit(byte))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_search_finds(
            bytes in prop::collection::vec(prop_oneof![4 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(0x0B), 4 => Just(0xFF)], 0..600),
            from in 0usize..20,
        ) {
            let from = from.min(bytes.len());
            let plain = |hit: &dyn Fn(u8) -> bool| bytes[from..].iter().position(|&byte| hit(byte)).map(|at| from + at);
            prop_assert_eq!(find_byte(&bytes, from, b'\n'), plain(&|byte| byte == b'\n'));
            prop_assert_eq!(count_byte(&bytes, 0xFF), bytes.iter().filter(|&&byte| byte == 0xFF).count());
            prop_assert_eq!(find_special(&bytes, from), plain(&|byte| byte < 0x20 || byte == b'"' || byte == b'\\'));
        }
    }
}
