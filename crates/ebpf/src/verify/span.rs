//! Bounds of a number: the smallest and the largest possible value, unsigned.

use crate::alu;
use crate::insn::{AluOp, Cond, Size, Width};

/// All numbers from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Span {
    pub(crate) const FULL: Self = Self { min: 0, max: u64::MAX };
    const LOWER_HALF: Self = Self::up_to(u32::MAX as u64);

    pub(crate) const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    pub(crate) const fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    /// Returns all numbers of `size`.
    pub(crate) const fn of(size: Size) -> Self {
        Self::up_to(size.max())
    }

    pub(crate) fn value(self) -> Option<u64> {
        (self.min == self.max).then_some(self.min)
    }

    pub(crate) fn join(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Returns the bounds as signed numbers, when the span is a span of those, too.
    pub(crate) fn signed(self) -> Option<(i64, i64)> {
        let (min, max) = (self.min as i64, self.max as i64);
        (min <= max).then_some((min, max))
    }

    fn truncated(self) -> Self {
        if self.max <= Self::LOWER_HALF.max { self } else { Self::LOWER_HALF }
    }

    /// Computes `self op other`.
    pub(crate) fn alu(self, op: AluOp, width: Width, other: Self) -> Self {
        if let (Some(a), Some(b)) = (self.value(), other.value()) {
            return Self::exactly(alu::alu(op, width, a, b));
        }
        match width {
            Width::W64 => self.alu64(op, other),
            Width::W32 => {
                let shift = matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
                let negative = matches!(op, AluOp::SDiv | AluOp::SMod | AluOp::Arsh);
                // A count of 32 or more, and numbers with bit 31 set, have another meaning in 32 bits.
                if shift && other.max >= 32 || negative && self.truncated().max > i32::MAX as u64 {
                    return Self::LOWER_HALF;
                }
                self.truncated().alu64(op, other.truncated()).truncated()
            }
        }
    }

    fn alu64(self, op: AluOp, other: Self) -> Self {
        let bits = |value: u64| u64::MAX.checked_shr(value.leading_zeros()).unwrap_or(0);
        match op {
            AluOp::Add => self.plus(other),
            AluOp::Sub => self.minus(other),
            AluOp::Mul => Self::from_ends(self.min.checked_mul(other.min), self.max.checked_mul(other.max)),
            AluOp::Div if other.min > 0 => Self { min: self.min / other.max, max: self.max / other.min },
            AluOp::Div => Self::up_to(self.max),
            AluOp::Mod if other.min > 0 => Self::up_to(self.max.min(other.max - 1)),
            AluOp::Mod => Self::up_to(self.max),
            AluOp::And => Self::up_to(self.max.min(other.max)),
            AluOp::Or => Self { min: self.min.max(other.min), max: bits(self.max | other.max) },
            AluOp::Xor => Self::up_to(bits(self.max | other.max)),
            AluOp::Mov => other,
            AluOp::Rsh => match other.value() {
                Some(count) => Self { min: self.min >> (count & 63), max: self.max >> (count & 63) },
                None => Self::up_to(self.max),
            },
            AluOp::Lsh => match other.value().map(|count| count & 63) {
                Some(count) if self.max.leading_zeros() as u64 >= count => {
                    Self { min: self.min << count, max: self.max << count }
                }
                _ => Self::FULL,
            },
            AluOp::Arsh if self.max <= i64::MAX as u64 => self.alu64(AluOp::Rsh, other),
            AluOp::Arsh | AluOp::SDiv | AluOp::SMod => Self::FULL,
        }
    }

    fn plus(self, other: Self) -> Self {
        match other.value() {
            Some(value) if value as i64 != i64::MIN && (value as i64) < 0 => {
                let down = value.wrapping_neg();
                Self::from_ends(self.min.checked_sub(down), self.max.checked_sub(down))
            }
            _ => Self::from_ends(self.min.checked_add(other.min), self.max.checked_add(other.max)),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self::from_ends(self.min.checked_sub(other.max), self.max.checked_sub(other.min))
    }

    fn from_ends(min: Option<u64>, max: Option<u64>) -> Self {
        match (min, max) {
            (Some(min), Some(max)) => Self { min, max },
            _ => Self::FULL,
        }
    }

    /// Returns the values of both that are left when `self cond other` holds; none if it cannot hold.
    pub(crate) fn refine(self, cond: Cond, width: Width, other: Self) -> Option<(Self, Self)> {
        let top = if width == Width::W32 { u32::MAX.into() } else { u64::MAX };
        let comparable = self.max <= top && other.max <= top;
        let half = top >> 1;
        let unsigned = match cond {
            Cond::SGt => Cond::Gt,
            Cond::SGe => Cond::Ge,
            Cond::SLt => Cond::Lt,
            Cond::SLe => Cond::Le,
            same => same,
        };
        if !comparable || unsigned != cond && (self.max > half || other.max > half) {
            return Some((self, other));
        }
        match unsigned {
            Cond::Lt => self.below(other),
            Cond::Le => self.at_most(other),
            Cond::Gt => other.below(self).map(|(b, a)| (a, b)),
            Cond::Ge => other.at_most(self).map(|(b, a)| (a, b)),
            Cond::Eq => {
                let both = Self { min: self.min.max(other.min), max: self.max.min(other.max) };
                (both.min <= both.max).then_some((both, both))
            }
            Cond::Ne => Some((self.without(other)?, other.without(self)?)),
            _ => Some((self, other)),
        }
    }

    fn below(self, other: Self) -> Option<(Self, Self)> {
        let a = Self { min: self.min, max: self.max.min(other.max.checked_sub(1)?) };
        let b = Self { min: other.min.max(self.min.checked_add(1)?), max: other.max };
        // Either both are empty or none is.
        (a.min <= a.max).then_some((a, b))
    }

    fn at_most(self, other: Self) -> Option<(Self, Self)> {
        let a = Self { min: self.min, max: self.max.min(other.max) };
        let b = Self { min: other.min.max(self.min), max: other.max };
        (a.min <= a.max).then_some((a, b))
    }

    /// Returns the span without the one value of the other, where that is an end.
    fn without(self, other: Self) -> Option<Self> {
        let Some(value) = other.value() else { return Some(self) };
        match (self.min == value, self.max == value) {
            (true, true) => None,
            (true, false) => Some(Self { min: value + 1, ..self }),
            (false, true) => Some(Self { max: value - 1, ..self }),
            (false, false) => Some(self),
        }
    }
}

/// Returns the condition that holds when `cond` does not, if there is one.
pub(crate) fn negated(cond: Cond) -> Option<Cond> {
    Some(match cond {
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Set => return None,
        Cond::Gt => Cond::Le,
        Cond::Le => Cond::Gt,
        Cond::Ge => Cond::Lt,
        Cond::Lt => Cond::Ge,
        Cond::SGt => Cond::SLe,
        Cond::SLe => Cond::SGt,
        Cond::SGe => Cond::SLt,
        Cond::SLt => Cond::SGe,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPS: [AluOp; 14] = [
        AluOp::Add,
        AluOp::Sub,
        AluOp::Mul,
        AluOp::Div,
        AluOp::SDiv,
        AluOp::Mod,
        AluOp::SMod,
        AluOp::Or,
        AluOp::And,
        AluOp::Xor,
        AluOp::Lsh,
        AluOp::Rsh,
        AluOp::Arsh,
        AluOp::Mov,
    ];
    const CONDS: [Cond; 10] = [
        Cond::Eq,
        Cond::Ne,
        Cond::Gt,
        Cond::Ge,
        Cond::Lt,
        Cond::Le,
        Cond::SGt,
        Cond::SGe,
        Cond::SLt,
        Cond::SLe,
    ];

    /// Returns a span with a value in it, near the limits at which numbers wrap.
    fn member() -> impl Strategy<Value = (Span, u64)> {
        let edge = prop::sample::select(vec![0u64, 1, 31, 63, 1 << 31, 1 << 32, 1 << 63, u64::MAX - 9]);
        (edge, 0u64..10, prop_oneof![Just(0), 0u64..40, Just(1 << 33), any::<u64>()], any::<u64>()).prop_map(
            |(edge, up, width, pick)| {
                let min = edge + up;
                let max = min.saturating_add(width);
                let value = if max - min == u64::MAX { pick } else { min + pick % (max - min + 1) };
                (Span { min, max }, value)
            },
        )
    }

    fn has(span: Span, value: u64) -> bool {
        span.min <= value && value <= span.max
    }

    /// Returns the smallest span of the values that are left, if any are.
    fn hull(values: impl Iterator<Item = u64> + Clone) -> Option<Span> {
        Some(Span { min: values.clone().min()?, max: values.max()? })
    }

    /// Compares all small spans, and those below the top of each width, with all their values. A wider result would be
    /// right, but leave accesses without a proof.
    #[test]
    fn refinement_leaves_no_value_too_many() {
        for (width, base) in [
            (Width::W64, 0),
            (Width::W32, 0),
            (Width::W64, u64::MAX - 5),
            (Width::W32, u64::from(u32::MAX) - 5),
            (Width::W64, (u64::MAX >> 1) - 5),
            (Width::W32, u64::from(u32::MAX >> 1) - 5),
        ] {
            let spans: Vec<Span> = (0..6)
                .flat_map(|min| (min..6).map(move |max| Span { min: base + min, max: base + max }))
                .collect();
            for (a, b) in spans.iter().flat_map(|a| spans.iter().map(move |b| (*a, *b))) {
                for cond in CONDS {
                    let pairs = (a.min..=a.max).flat_map(|x| (b.min..=b.max).map(move |y| (x, y)));
                    let left = pairs.filter(|(x, y)| alu::compare(cond, width, *x, *y));
                    let left: Vec<(u64, u64)> = left.collect();
                    let [xs, ys] = [hull(left.iter().map(|it| it.0)), hull(left.iter().map(|it| it.1))];
                    let is_signed = matches!(cond, Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe);
                    let half = if width == Width::W32 { u64::from(u32::MAX >> 1) } else { u64::MAX >> 1 };
                    // Negative numbers are not followed.
                    let expected = match is_signed && a.max.max(b.max) > half {
                        true => Some((a, b)),
                        false => xs.zip(ys),
                    };
                    assert_eq!(a.refine(cond, width, b), expected, "{a:?} {cond:?} {width:?} {b:?}");
                }
            }
        }
        let large = Span { min: 0, max: 1 << 32 };
        assert_eq!(large.refine(Cond::Lt, Width::W32, Span::exactly(5)), Some((large, Span::exactly(5))));
        assert_eq!(Span::up_to(9).refine(Cond::Lt, Width::W32, large), Some((Span::up_to(9), large)));
        assert_eq!(Span::up_to(9).refine(Cond::Set, Width::W64, large), Some((Span::up_to(9), large)));
    }

    /// Compares arithmetic on small spans with all results, where spans of them are exact.
    #[test]
    fn arithmetic_is_exact_where_a_span_can_be() {
        let spans: Vec<Span> =
            (0..7).flat_map(|min| (min..7).map(move |max| Span { min: 10 + min, max: 10 + max })).collect();
        let small: Vec<Span> =
            (0..7).flat_map(|min| (min..7).map(move |max| Span { min: 1 + min, max: 1 + max })).collect();
        for width in [Width::W64, Width::W32] {
            for (a, b) in spans.iter().flat_map(|a| small.iter().map(move |b| (*a, *b))) {
                for op in [AluOp::Add, AluOp::Sub, AluOp::Mul, AluOp::Div, AluOp::Mov, AluOp::Lsh, AluOp::Rsh]
                {
                    if matches!(op, AluOp::Lsh | AluOp::Rsh) && b.value().is_none() {
                        continue;
                    }
                    let pairs = (a.min..=a.max).flat_map(|x| (b.min..=b.max).map(move |y| (x, y)));
                    let exact = hull(pairs.map(|(x, y)| alu::alu(op, width, x, y)));
                    assert_eq!(Some(a.alu(op, width, b)), exact, "{a:?} {op:?} {width:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn other_arithmetic_has_these_bounds() {
        const HALF: u64 = u32::MAX as u64;
        let span = |min, max| Span { min, max };
        let (a, full) = (span(20, 100), Span::FULL);
        for (a, op, b, wide, narrow) in [
            (a, AluOp::Mod, span(7, 9), span(0, 8), span(0, 8)),
            (a, AluOp::Mod, span(7, 500), span(0, 100), span(0, 100)),
            (a, AluOp::Mod, span(0, 9), span(0, 100), span(0, 100)),
            (a, AluOp::Div, span(0, 9), span(0, 100), span(0, 100)),
            (a, AluOp::And, span(7, 9), span(0, 9), span(0, 9)),
            (a, AluOp::Or, span(7, 9), span(20, 127), span(20, 127)),
            (a, AluOp::Or, span(30, 200), span(30, 255), span(30, 255)),
            (a, AluOp::Xor, span(7, 9), span(0, 127), span(0, 127)),
            (a, AluOp::Rsh, span(1, 2), span(0, 100), span(0, 100)),
            (a, AluOp::Lsh, span(1, 2), full, span(0, HALF)),
            (a, AluOp::Arsh, Span::exactly(2), span(5, 25), span(5, 25)),
            (a, AluOp::SDiv, span(7, 9), full, span(0, HALF)),
            (a, AluOp::SMod, span(7, 9), full, span(0, HALF)),
            (a, AluOp::Rsh, span(31, 32), span(0, 100), span(0, HALF)),
            (a, AluOp::Rsh, Span::exactly(32), span(0, 0), span(0, HALF)),
            (a, AluOp::Rsh, Span::exactly(31), span(0, 0), span(0, 0)),
            (span(0, 0), AluOp::Or, span(0, 1), span(0, 1), span(0, 1)),
            // A number below zero is subtracted.
            (a, AluOp::Add, Span::exactly(-20i64 as u64), span(0, 80), span(0, HALF)),
            (a, AluOp::Add, Span::exactly(-21i64 as u64), full, span(0, HALF)),
            (a, AluOp::Sub, span(1, 20), span(0, 99), span(0, 99)),
            (a, AluOp::Sub, span(1, 21), full, span(0, HALF)),
            (span(0, u64::MAX - 1), AluOp::Add, span(0, 1), full, span(0, HALF)),
            (span(0, u64::MAX), AluOp::Add, span(0, 1), full, span(0, HALF)),
            (span(0, 1 << 40), AluOp::Mul, span(2, 1 << 24), full, span(0, HALF)),
            (span(1, HALF), AluOp::Add, span(0, 1), span(1, HALF + 1), span(0, HALF)),
            (span(1, 3), AluOp::Lsh, Span::exactly(62), span(1 << 62, 3 << 62), span(0, HALF)),
            (span(1, 3), AluOp::Lsh, Span::exactly(63), full, span(0, HALF)),
            (span(1, 3), AluOp::Lsh, Span::exactly(30), span(1 << 30, 3 << 30), span(1 << 30, 3 << 30)),
            (
                span(1, i64::MAX as u64),
                AluOp::Arsh,
                Span::exactly(1),
                span(0, i64::MAX as u64 / 2),
                span(0, HALF),
            ),
            (span(1, 1 << 63), AluOp::Arsh, Span::exactly(1), full, span(0, HALF)),
            (
                span(1, i32::MAX as u64),
                AluOp::Arsh,
                Span::exactly(1),
                span(0, 0x3fff_ffff),
                span(0, 0x3fff_ffff),
            ),
            (span(1, 1 << 31), AluOp::Arsh, Span::exactly(1), span(0, 1 << 30), span(0, HALF)),
        ] {
            assert_eq!(a.alu(op, Width::W64, b), wide, "{a:?} {op:?} {b:?}");
            assert_eq!(a.alu(op, Width::W32, b), narrow, "{a:?} {op:?} {b:?} in 32 bits");
        }
        assert_eq!([full.signed(), span(0, i64::MAX as u64).signed()], [None, Some((0, i64::MAX))]);
        assert_eq!(Span::exactly(u64::MAX).signed(), Some((-1, -1)));
        assert_eq!(span(5, 9).join(span(2, 7)), span(2, 9));
        assert_eq!((span(5, 5).value(), span(5, 6).value()), (Some(5), None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn arithmetic_covers((a, x) in member(), (b, y) in member(), op in 0usize..14, wide: bool) {
            let (op, width) = (OPS[op], if wide { Width::W64 } else { Width::W32 });
            let (span, value) = (a.alu(op, width, b), alu::alu(op, width, x, y));
            prop_assert!(has(span, value), "{a:?} {op:?} {width:?} {b:?} = {span:?}, but {x} and {y} give {value}");
        }

        #[test]
        fn refinement_covers((a, x) in member(), (b, y) in member(), cond in 0usize..10, wide: bool) {
            let (cond, width) = (CONDS[cond], if wide { Width::W64 } else { Width::W32 });
            if alu::compare(cond, width, x, y) {
                let refined = a.refine(cond, width, b);
                prop_assert!(refined.is_some_and(|(a, b)| has(a, x) && has(b, y)), "{refined:?}");
            } else if let Some(cond) = negated(cond) {
                let refined = a.refine(cond, width, b);
                prop_assert!(refined.is_some_and(|(a, b)| has(a, x) && has(b, y)), "{refined:?}");
            }
        }
    }
}
