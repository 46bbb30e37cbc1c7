//! DH-HMAC-CHAP: a peer without the key is not authenticated, by either end and after any change of the
//! messages in transit; and the text form of keys.

use crate::Input;
use sluice_nvme_auth::{
    Controller, Entropy, Group, Hash, Host, Key, MESSAGE_MAX, Names, Offer, Step, Terms, Verdict,
};
use std::sync::Arc;

/// Three different secrets.
const KEYS: [&str; 3] = [
    "DHHC-1:01:AQADAgUEBwYJCAsKDQwPDhEQExIVFBcWGRgbGh0cHx7rtB3q:",
    "DHHC-1:02:CQgLCg0MDw4BAAMCBQQHBhkYGxodHB8eERATEhUUFxYpKCsqLSwvLiEgIyIlJCcmebLBXA==:",
    "DHHC-1:00:TUxPTklIS0pFREdGQUBDQl1cX15ZWFtaVVRXVlFQU1J2NL99:",
];

/// Messages that each end receives.
const ROUNDS: u8 = 6;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => read_key(input.bytes(usize::MAX)),
        _ => talk(&mut input),
    }
}

fn read_key(text: &[u8]) {
    match Key::parse(text) {
        Ok(key) => assert!(text.trim_ascii().starts_with(b"DHHC-1:0") && key.is_like(&key)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Runs a host and a controller with different keys, and a third party between them.
fn talk(input: &mut Input<'_>) {
    let group = if input.one_in(16) { Group::Ffdhe2048 } else { Group::Null };
    let host_is_honest = input.one_in(2);
    let key = |number: usize| Key::parse(KEYS[number].as_bytes()).expect("a key");
    let offer = || Offer { hashes: Hash::ALL.to_vec(), groups: vec![group] };
    let names = || Names { hostnqn: "nqn.host".to_owned(), subnqn: "nqn.subsystem".to_owned() };
    let theirs = Terms { host: key(0), controller: Some(key(1)), offer: offer() };
    let ours =
        Terms { host: key(if host_is_honest { 0 } else { 2 }), controller: Some(key(2)), offer: offer() };
    let mut controller = Controller::new(names(), Arc::new(theirs));
    let mut host = Host::new(names(), Arc::new(ours), 7, entropy(0));
    let mut to_controller = host.negotiate();
    for round in 1..=ROUNDS {
        let progress = controller.take(&tampered(input, to_controller), entropy(round));
        assert!(
            host_is_honest || progress.verdict != Verdict::Authenticated,
            "somebody is let in without the key"
        );
        let Some(reply) = progress.reply else { return };
        assert!(reply.len() <= MESSAGE_MAX);
        to_controller = match host.take(&tampered(input, reply)) {
            Step::Send(message) | Step::Failed(_, Some(message)) => message,
            Step::Done(_) => panic!("a controller is believed without the key"),
            Step::Failed(_, None) => return,
        };
        assert!(to_controller.len() <= MESSAGE_MAX);
    }
}

/// Returns a message unchanged, with some bytes changed, or another one.
fn tampered(input: &mut Input<'_>, mut message: Vec<u8>) -> Vec<u8> {
    match input.below(3) {
        0 => message,
        1 => {
            for _ in 0..input.below(8) {
                let at = usize::from(input.u16()) % message.len();
                message[at] = input.byte();
            }
            message
        }
        _ => {
            let length = usize::from(input.u16());
            input.bytes(length).to_vec()
        }
    }
}

fn entropy(seed: u8) -> Entropy {
    Entropy::new(std::array::from_fn(|at| seed ^ at as u8), u32::from(seed) + 1, [seed | 1; 64])
}
