//! LEB128 variable-length integers, for records on disk and in the piece store.

#[inline(always)]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads the number at `*at` and advances past it. The bytes are our own: a truncated number is a bug.
#[inline(always)]
pub fn get(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(values in prop::collection::vec(any::<u64>(), 0..100)) {
            let mut bytes = Vec::new();
            values.iter().for_each(|&value| super::put(&mut bytes, value));
            let mut at = 0;
            let back: Vec<u64> = values.iter().map(|_| super::get(&bytes, &mut at)).collect();
            prop_assert_eq!(back, values);
            prop_assert_eq!(at, bytes.len());
        }
    }
}
