//! Diffie-Hellman in a [`Group`]: an exponent, and the secret that both ends derive.

use crate::Group;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

/// Bytes of an exponent: more than twice the strength of the largest group (RFC 7919, 5.2).
pub(crate) const EXPONENT: usize = 64;

/// An exponent in a group.
pub(crate) struct Exchange {
    group: Group,
    exponent: Zeroizing<[u8; EXPONENT]>,
}

impl Exchange {
    /// Creates an exchange; returns none for the null group.
    pub(crate) fn new(group: Group, exponent: Zeroizing<[u8; EXPONENT]>) -> Option<Self> {
        (group != Group::Null).then_some(Self { group, exponent })
    }

    /// Returns the public value for the peer: g to the power of the exponent, as long as the modulus.
    pub(crate) fn public(&self) -> Vec<u8> {
        let mut generator = vec![0; self.group.length()];
        generator.last_mut().into_iter().for_each(|last| *last = 2);
        self.power(&generator).to_vec()
    }

    /// Returns the shared secret, as long as the modulus. Returns none if the peer's value is invalid: of
    /// another length, or a number whose powers are 0, 1 and -1 only (RFC 7919, 5.1).
    pub(crate) fn shared(&self, theirs: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let modulus = self.group.modulus();
        let (last, head) = theirs.split_last()?;
        let is_small = head.iter().all(|byte| *byte == 0) && *last < 2;
        let mut largest = modulus;
        // The modulus is odd and ends with ones: nothing is carried.
        largest.last_mut().into_iter().for_each(|last| *last -= 1);
        let fits = theirs.len() == largest.len() && *theirs < *largest;
        (fits && !is_small).then(|| self.power(theirs))
    }

    /// Computes `base` to the power of the exponent. The time does not depend on the exponent.
    fn power(&self, base: &[u8]) -> Zeroizing<Vec<u8>> {
        let bits = (self.group.length() * 8) as u32;
        let number = |bytes: &[u8], bits| BoxedUint::from_be_slice_truncated(bytes, bits);
        let modulus = Odd::new(number(&self.group.modulus(), bits));
        let modulus = modulus.into_option().expect("moduli end with ones");
        let params = BoxedMontyParams::new(modulus);
        let exponent_bits = (EXPONENT * 8) as u32;
        let exponent = Zeroizing::new(number(&*self.exponent, exponent_bits));
        let base = BoxedMontyForm::new(number(base, bits), &params);
        let power = Zeroizing::new(base.pow_bounded_exp(&exponent, exponent_bits));
        Zeroizing::new(Zeroizing::new(power.retrieve()).to_be_bytes().into_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(group: Group, seed: u8) -> Exchange {
        Exchange::new(group, Zeroizing::new([seed; EXPONENT])).expect("a group")
    }

    #[test]
    fn both_ends_come_to_the_same() {
        for group in Group::ALL.into_iter().skip(1) {
            let (one, other) = (exchange(group, 0x35), exchange(group, 0xc9));
            let shared = one.shared(&other.public()).expect("a public value");
            assert_eq!(shared.len(), group.length());
            assert_eq!(other.shared(&one.public()).as_deref(), Some(&*shared));
            assert_ne!(exchange(group, 0x36).shared(&other.public()).as_deref(), Some(&*shared));
        }
        assert!(Exchange::new(Group::Null, Zeroizing::new([1; EXPONENT])).is_none());
    }

    /// Checks that 2 generates the half of the group whose order is prime: a modulus with a wrong digit would
    /// fail.
    #[test]
    fn the_generator_has_the_order_that_it_should() {
        for group in Group::ALL.into_iter().skip(1) {
            let bits = (group.length() * 8) as u32;
            let modulus = BoxedUint::from_be_slice_truncated(&group.modulus(), bits);
            let half = &modulus >> 1u32;
            let params = BoxedMontyParams::new(Odd::new(modulus).into_option().expect("odd"));
            let two = BoxedMontyForm::new(BoxedUint::from_be_slice_truncated(&[2], bits), &params);
            assert!(bool::from(two.pow(&half).retrieve().is_one()), "{group:?}");
        }
    }

    #[test]
    fn numbers_that_give_the_secret_away_are_refused() {
        let one = exchange(Group::Ffdhe2048, 7);
        let length = Group::Ffdhe2048.length();
        let small = |last: u8| [vec![0; length - 1], vec![last]].concat();
        let modulus = Group::Ffdhe2048.modulus();
        let below = |by: u8| [&modulus[..length - 1], &[0xff - by]].concat();
        for wrong in [small(0), small(1), below(0), below(1), vec![0xff; length], vec![2; length - 1], vec![]]
        {
            assert!(one.shared(&wrong).is_none());
        }
        assert!(one.shared(&vec![2; 1 + length]).is_none());
        assert!(one.shared(&small(2)).is_some() && one.shared(&below(2)).is_some());
    }
}
