//! Both roles against one another.

mod vectors;

use base64ct::{Base64, Encoding};
use proptest::prelude::*;
use sluice_nvme_auth::{
    Controller, Entropy, Failure, Group, Hash, Host, Key, Names, Offer, Progress, Step, Terms, Verdict,
};
use std::sync::Arc;
use vectors::VECTORS;

fn names() -> Names {
    Names {
        hostnqn: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555".to_owned(),
        subnqn: "nqn.2024-01.org.example:disk".to_owned(),
    }
}

fn key(transform: u8, seed: u8) -> Key {
    let secret: Vec<u8> = (0..32).map(|n| seed ^ n).collect();
    let bytes = [&secret[..], &crc32fast::hash(&secret).to_le_bytes()].concat();
    let text = format!("DHHC-1:{transform:02}:{}:", Base64::encode_string(&bytes));
    Key::parse(text.as_bytes()).expect("a key")
}

fn terms(host: u8, controller: Option<u8>, offer: Offer) -> Arc<Terms> {
    Arc::new(Terms { host: key(1, host), controller: controller.map(|seed| key(2, seed)), offer })
}

fn entropy(seed: u8) -> Entropy {
    let challenge = std::array::from_fn(|n| seed.wrapping_mul(3).wrapping_add(n as u8));
    Entropy::new(challenge, u32::from(seed) + 1, [seed | 1; 64])
}

fn only(hash: Hash, group: Group) -> Offer {
    Offer { hashes: vec![hash], groups: vec![group] }
}

/// Results of a transaction, for each end.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    controller: Verdict,
    host: Option<Failure>,
    /// All messages, in order; the host begins.
    said: Vec<Vec<u8>>,
}

/// Runs a transaction; `tamper` gets every message with its number before it is delivered.
fn run(host: Arc<Terms>, controller: Arc<Terms>, mut tamper: impl FnMut(usize, &mut Vec<u8>)) -> Outcome {
    let mut host = Host::new(names(), host, 0x1234, entropy(77));
    let mut controller = Controller::new(names(), controller);
    let mut said = Vec::new();
    let mut deliver = |mut message: Vec<u8>| {
        tamper(said.len(), &mut message);
        said.push(message.clone());
        message
    };
    let mut to_controller = deliver(host.negotiate());
    let mut seed = 40;
    loop {
        seed += 1;
        let Progress { reply, verdict } = controller.take(&to_controller, entropy(seed));
        let Some(reply) = reply else {
            let host = matches!(verdict, Verdict::GivenUp(_)).then_some(Failure::FAILED);
            return Outcome { controller: verdict, host, said };
        };
        match host.take(&deliver(reply)) {
            Step::Send(next) | Step::Done(Some(next)) => to_controller = deliver(next),
            Step::Done(None) => return Outcome { controller: verdict, host: None, said },
            Step::Failed(why, None) => return Outcome { controller: verdict, host: Some(why), said },
            Step::Failed(why, Some(last)) => {
                let Progress { verdict, .. } = controller.take(&deliver(last), entropy(0));
                return Outcome { controller: verdict, host: Some(why), said };
            }
        }
    }
}

fn untouched(_: usize, _: &mut Vec<u8>) {}

/// Conformance: Base 8.13.5, each hash function works with each Diffie-Hellman group, one way and both.
#[test]
fn every_hash_with_every_group_both_ways() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for controller in [None, Some(9)] {
                let terms = terms(1, controller, only(hash, group));
                let outcome = run(Arc::clone(&terms), terms, untouched);
                assert_eq!((outcome.controller, outcome.host), (Verdict::Authenticated, None));
                assert_eq!(outcome.said.len(), if controller.is_some() { 5 } else { 4 });
            }
        }
    }
}

/// Conformance: Base 8.13.5, AUTH_Success1 has its hash length, and room for a response, without one as well.
#[test]
fn a_success_has_the_length_of_the_hash() {
    for hash in Hash::ALL {
        for (controller, answers) in [(None, 0), (Some(9), 1)] {
            let terms = terms(1, controller, only(hash, Group::Null));
            let success = &run(Arc::clone(&terms), terms, untouched).said[3];
            assert_eq!(success.len(), 16 + hash.length());
            assert_eq!((success[6], success[8]), (hash.length() as u8, answers), "HL and RVALID");
            assert_eq!(success[16..].iter().any(|byte| *byte != 0), answers != 0, "the response");
        }
    }
}

#[test]
fn another_key_is_refused() {
    let offer = || only(Hash::Sha384, Group::Ffdhe2048);
    let failed = Verdict::Failed(Failure::FAILED);
    let outcome = run(terms(1, None, offer()), terms(2, None, offer()), untouched);
    assert_eq!((outcome.controller, outcome.host), (failed, Some(Failure::FAILED)));
    // The host finds out that the controller has another.
    let given_up = Verdict::GivenUp(Failure::FAILED);
    let outcome = run(terms(1, Some(3), offer()), terms(1, Some(4), offer()), untouched);
    assert_eq!((outcome.controller, outcome.host), (given_up, Some(Failure::FAILED)));
    // Or none.
    let outcome = run(terms(1, Some(3), offer()), terms(1, None, offer()), untouched);
    assert_eq!((outcome.controller, outcome.host), (failed, Some(Failure::FAILED)));
    // A controller key that the host does not use is not needed.
    let outcome = run(terms(1, None, offer()), terms(1, Some(4), offer()), untouched);
    assert_eq!((outcome.controller, outcome.host), (Verdict::Authenticated, None));
}

#[test]
fn names_are_part_of_the_proof() {
    let terms = terms(1, None, only(Hash::Sha256, Group::Null));
    for (hostnqn, subnqn) in [("nqn.other", ""), ("", "nqn.other")] {
        let pick = |other: &str, own: String| if other.is_empty() { own } else { other.to_owned() };
        let other = Names { hostnqn: pick(hostnqn, names().hostnqn), subnqn: pick(subnqn, names().subnqn) };
        let mut host = Host::new(other, Arc::clone(&terms), 1, entropy(1));
        let mut controller = Controller::new(names(), Arc::clone(&terms));
        let challenge = controller.take(&host.negotiate(), entropy(2)).reply.expect("a challenge");
        let Step::Send(reply) = host.take(&challenge) else { panic!("a reply") };
        assert_eq!(controller.take(&reply, entropy(3)).verdict, Verdict::Failed(Failure::FAILED));
    }
}

/// Conformance: Base 8.13.5, a transaction without a hash function, group or secure channel that both want fails, and says why.
#[test]
fn what_both_like_is_chosen_and_nothing_else() {
    let host = |hashes: &[Hash], groups: &[Group]| {
        terms(1, None, Offer { hashes: hashes.to_vec(), groups: groups.to_vec() })
    };
    let ours = host(&[Hash::Sha512, Hash::Sha256], &[Group::Ffdhe3072, Group::Null]);
    let all = terms(1, None, Offer::default());
    let outcome = run(all, Arc::clone(&ours), untouched);
    assert_eq!(outcome.said[1][8..10], [Hash::Sha512.id(), Group::Ffdhe3072.id()]);
    let outcome = run(host(&[Hash::Sha384], &[Group::Null]), Arc::clone(&ours), untouched);
    assert_eq!(outcome.host, Some(Failure::HASH));
    let outcome = run(host(&[Hash::Sha256], &[Group::Ffdhe2048]), Arc::clone(&ours), untouched);
    assert_eq!((outcome.controller, outcome.host), (Verdict::Failed(Failure::GROUP), Some(Failure::GROUP)));
    let concatenated = run(host(&[Hash::Sha256], &[Group::Null]), ours, |number, message| {
        if number == 0 {
            message[6] = 1;
        }
    });
    assert_eq!(concatenated.host, Some(Failure::SECURE_CHANNEL));
}

/// Conformance: Base 8.13.5, a response is good for one challenge alone.
#[test]
fn an_answer_is_good_for_one_challenge() {
    let terms = terms(1, None, only(Hash::Sha256, Group::Null));
    let mut host = Host::new(names(), Arc::clone(&terms), 9, entropy(1));
    let negotiate = host.negotiate();
    let mut controller = Controller::new(names(), Arc::clone(&terms));
    let challenge = controller.take(&negotiate, entropy(2)).reply.expect("a challenge");
    let Step::Send(reply) = host.take(&challenge) else { panic!("a reply") };
    assert_eq!(controller.take(&reply, entropy(3)).verdict, Verdict::Authenticated);
    // At once, after the next challenge, and on another queue.
    assert_eq!(controller.take(&reply, entropy(4)).verdict, Verdict::Failed(Failure::MESSAGE));
    controller.take(&negotiate, entropy(5));
    assert_eq!(controller.take(&reply, entropy(6)).verdict, Verdict::Failed(Failure::FAILED));
    let mut other = Controller::new(names(), terms);
    assert_eq!(other.take(&reply, entropy(7)).verdict, Verdict::Failed(Failure::MESSAGE));
}

#[test]
fn a_host_does_not_take_an_answer_that_was_not_asked_for() {
    let offer = || only(Hash::Sha256, Group::Null);
    // The controller leaves its response out.
    let both = terms(1, Some(2), offer());
    let outcome = run(Arc::clone(&both), both, |number, message| {
        if number == 3 {
            message[8] = 0;
        }
    });
    assert_eq!(outcome.host, Some(Failure::FAILED));
    // The host sends Success2 before it has received anything.
    let mut host = Host::new(names(), terms(1, None, offer()), 9, entropy(1));
    let outcome = run(terms(1, None, offer()), terms(1, None, offer()), untouched);
    let mut success = outcome.said[3].clone();
    success[4..6].copy_from_slice(&9u16.to_le_bytes());
    assert!(matches!(host.take(&success), Step::Failed(Failure::MESSAGE, Some(_))));
}

#[test]
fn its_own_challenge_is_not_answered() {
    let terms = terms(1, Some(2), only(Hash::Sha256, Group::Null));
    let mut seen = Vec::new();
    let outcome = run(Arc::clone(&terms), terms, |number, message| match number {
        1 => seen = message[16..48].to_vec(),
        2 => message[48..80].copy_from_slice(&seen),
        _ => {}
    });
    assert_eq!(outcome.controller, Verdict::Failed(Failure::FAILED));
}

/// Compares with a transaction that another implementation of the specification computed: Python's hashlib,
/// hmac and pow.
#[test]
fn responses_are_those_of_the_specification() {
    for (hash, group, host, controller) in VECTORS {
        let terms = terms(1, Some(9), only(*hash, *group));
        let outcome = run(Arc::clone(&terms), terms, untouched);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&outcome.said[2][16..][..hash.length()]), *host, "{hash:?} {group:?}");
        assert_eq!(hex(&outcome.said[3][16..][..hash.length()]), *controller, "{hash:?} {group:?}");
    }
}

proptest! {
    /// Flips each bit of each message. Both ends succeed only if the bit is reserved, in an offer that is not
    /// taken, or in the explanation of a failure.
    #[test]
    fn changed_messages_are_noticed(number in 1usize..5, bit in 0usize..2000) {
        let terms = terms(1, Some(9), only(Hash::Sha256, Group::Ffdhe2048));
        let mut at = 0;
        let outcome = run(Arc::clone(&terms), terms, |it, message| {
            if it == number {
                at = bit % (message.len() * 8);
                message[at / 8] ^= 1 << (at % 8);
            }
        });
        let reserved: &[usize] = match number {
            1 => &[2, 3, 7],
            2 => &[2, 3, 7, 9],
            3 => &[2, 3, 7, 9, 10, 11, 12, 13, 14, 15],
            // Success2 has nothing but its identifiers.
            _ => &[2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        };
        // CVALID and RVALID are a bit each.
        let ignored = reserved.contains(&(at / 8)) || at / 8 == 8 && at % 8 != 0 && number >= 2;
        let content = outcome.controller == Verdict::Authenticated && outcome.host.is_none();
        prop_assert_eq!(content, ignored, "message {} byte {} bit {}", number, at / 8, at % 8);
    }

    #[test]
    fn nobody_is_let_in_by_noise(messages in proptest::collection::vec(
        (0u8..2, prop_oneof![0u8..5, 0xf0u8..0xf2], proptest::collection::vec(any::<u8>(), 0..200)), 1..6)
    ) {
        let mut controller = Controller::new(names(), terms(1, Some(9), only(Hash::Sha256, Group::Null)));
        let mut host = Host::new(names(), terms(1, Some(9), only(Hash::Sha256, Group::Null)), 0, entropy(3));
        for (kind, id, rest) in messages {
            let message = [&[kind, id, 0, 0, 0, 0][..], &rest].concat();
            prop_assert_ne!(controller.take(&message, entropy(1)).verdict, Verdict::Authenticated);
            prop_assert!(!matches!(host.take(&message), Step::Done(_)));
        }
    }
}
