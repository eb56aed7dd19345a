//! Vectorized exp.

use super::vector::Vector;

/// Above it the result is infinite: the natural logarithm of the greatest `f32`.
const HIGHEST: f32 = 88.722_84;
/// Below it the result is 0: the logarithm of the least normal `f32`. Smaller results would be subnormal, which is very
/// slow on some CPUs, and what a softmax loses is below 2^-126.
const LOWEST: f32 = -87.336_54;

/// 1.5 * 2^23: adding it to a number leaves the nearest integer in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts, the first short enough that its products with an exponent are exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, minimizing the maximum relative error of e^r, 3.1e-9.
const SERIES: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_4, 0.008_368_851, 0.001_381_432];

/// Within 1 ulp of the exact value; 0 below the logarithm of the least normal number; NaN for a NaN.
///
/// x = n ln 2 + r, so that e^x = 2^n e^r with e^r from a polynomial and 2^n added to its exponent.
#[inline(always)]
pub fn exp<V: Vector>(x: V) -> V {
    let rounder = V::splat(ROUNDER);
    let shifted = x * V::splat(std::f32::consts::LOG2_E) + rounder;
    let whole = shifted - rounder;
    let rest = x - whole * V::splat(LN_2_HIGH) - whole * V::splat(LN_2_LOW);
    let mut tail = rest * V::splat(SERIES[4]) + V::splat(SERIES[3]);
    tail = tail * rest + V::splat(SERIES[2]);
    tail = tail * rest + V::splat(SERIES[1]);
    tail = tail * rest + V::splat(SERIES[0]);
    let power = (tail * (rest * rest) + rest + V::splat(1.0)).add_to_exponent(shifted);
    let power = V::choose_at_most(V::splat(LOWEST), x, power, V::splat(0.0));
    // Infinity if x is too large, and NaN for NaN.
    V::choose_at_most(x, V::splat(HIGHEST), power, x + V::splat(f32::INFINITY))
}
