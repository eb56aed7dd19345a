//! Quantizes a magnitude between 0 and 1 to a small code: the dynamic map, computed instead of looked up.
//!
//! With `n = code + 1` and `J` magnitude bits, the map goes through the points `(2^j, 8^(j - J))`, `j = 0..=J`, and is
//! linear between them. So the leading one of `n` gives the power of eight below a value, and the lower bits its place
//! between two powers. The highest code is exactly 1. All values are small integers times powers of two: decoding never
//! rounds.
//!
//! There are no branches and no table lookups, so a loop over a block is vectorized for the caller's target. No fused
//! multiply-add: each operation rounds on its own, as in the versions for other devices.

/// Adding this to a smaller float rounds it to an integer, which is then in the low bits.
const TO_INTEGER: f32 = 8_388_608.0; // 2^23
const SEVENTH: u32 = (1.0f32 / 7.0).to_bits();
const SIX_SEVENTHS: u32 = (6.0f32 / 7.0).to_bits();

/// The value of a code of `J` bits. Code 0 is `8^-J`, the lowest value there is.
#[inline(always)]
pub fn decode<const J: u32>(code: u32) -> f32 {
    let n = (code as i32 + 1) as f32;
    let exponent = n.to_bits() & 0xff80_0000; // 127 + j, in the exponent bits
    let leading = f32::from_bits(exponent);
    // 2^(2 j - 3 J); the shift loses a bit of 2 * 127, and the subtraction borrows it back.
    let scale = f32::from_bits((exponent << 1).wrapping_sub((127 + 3 * J) << 23));
    (6.0 * (n - leading) + n) * scale
}

/// The nearest code of `J` bits, ties to even. `magnitude` is from 0 to 1, up to rounding.
#[inline(always)]
pub fn encode<const J: u32>(magnitude: f32) -> u32 {
    let magnitude = magnitude.max(f32::from_bits((127 - 3 * J) << 23));
    // 32 j: 3 j counts from 0 for 8^-J, and 11 / 32 is a third, rounded down, for numbers up to 24.
    let level = ((magnitude.to_bits() >> 23) * 11).wrapping_sub((127 - 3 * J) * 11) & !31;
    let slope = f32::from_bits((SEVENTH + ((3 * J) << 23)).wrapping_sub(level << 19));
    let offset = f32::from_bits(SIX_SEVENTHS + (level << 18));
    let n = magnitude * slope + offset;
    (n + (TO_INTEGER - 1.0)).to_bits() & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const J: u32>() -> Vec<f64> {
        (0..1u32 << J).map(|code| f64::from(decode::<J>(code))).collect()
    }

    fn round_trips<const J: u32>() {
        let values = values::<J>();
        assert_eq!(*values.last().unwrap(), 1.0);
        assert!(values.is_sorted_by(|a, b| a < b));
        for (code, value) in values.iter().enumerate() {
            assert_eq!(encode::<J>(*value as f32), code as u32);
        }
        for j in 0..=J {
            assert_eq!(values[(1 << j) - 1], 8f64.powi(j as i32 - J as i32));
        }
    }

    fn is_nearest<const J: u32>() {
        let values = values::<J>();
        let mut magnitude = 1e-9f32;
        while magnitude <= 1.0 {
            let code = encode::<J>(magnitude) as usize;
            let error = |code: usize| (values[code] - f64::from(magnitude)).abs();
            for other in [code.saturating_sub(1), (code + 1).min(values.len() - 1)] {
                // The arithmetic rounds too, if a magnitude is almost exactly between two codes.
                let slack = values[code] * 1e-6;
                assert!(error(code) <= error(other) + slack, "{magnitude} became {code}, not {other}");
            }
            magnitude *= 1.0001;
        }
    }

    #[test]
    fn every_value_has_its_code() {
        round_trips::<7>();
        round_trips::<8>();
    }

    #[test]
    fn the_nearest_code_is_chosen() {
        is_nearest::<7>();
        is_nearest::<8>();
    }

    #[test]
    fn the_ends_are_the_ends() {
        let above = f32::from_bits(1f32.to_bits() + 1); // 1 after rounding up
        assert_eq!((encode::<7>(above), encode::<8>(above)), (127, 255));
        assert_eq!((encode::<7>(0.0), encode::<8>(0.0)), (0, 0));
        assert_eq!((encode::<7>(f32::MIN_POSITIVE), encode::<8>(1e-40)), (0, 0));
    }
}
