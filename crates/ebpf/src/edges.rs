//! Generator of programs that the verifier barely accepts, out of bytes.
//!
//! Each step exercises something that the verifier follows: pointers and numbers that are stored in the frame
//! and loaded again, stores that may hit them, addresses at the ends of a region, values that two branches
//! bring. If the verifier misses one of these, its proof sends machine code to another place than the
//! interpreter, which checks every access.

use crate::asm::{Asm, I, R, Src};
use crate::fuzz::maps;
use crate::insn::{AluOp, AtomicOp, Cond, Size, Width};
use crate::object::Object;

/// Register with the context's address.
const CONTEXT: u8 = 6;
/// Register with the address of an array's element.
const ELEMENT: u8 = 7;
/// Register with a number of the context, without any bound for the verifier.
const NUMBER: u8 = 8;

/// Makes a program out of bytes.
pub(crate) fn generate(bytes: &[u8]) -> Object {
    let mut edges = Edges { bytes: bytes.iter(), asm: Asm::new(), labels: 0, slots: Slots::Mixed };
    edges.slots = [Slots::Pointers, Slots::Numbers, Slots::Pointers, Slots::Numbers, Slots::Mixed]
        [edges.below(5) as usize];
    edges.program();
    Object { slots: edges.asm.finish(), maps: maps(), ..Object::default() }
}

/// Content of the slots of a program. Programs with one kind run to their end, whichever slot a store hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slots {
    Pointers,
    /// Small numbers, which are added to an address.
    Numbers,
    /// Pointers, numbers, and any other value. Most of these programs trap.
    Mixed,
}

struct Edges<'a> {
    bytes: std::slice::Iter<'a, u8>,
    asm: Asm,
    labels: usize,
    slots: Slots,
}

impl Edges<'_> {
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    fn below(&mut self, bound: u8) -> i32 {
        i32::from(self.byte() % bound)
    }

    fn size(&mut self) -> Size {
        [Size::B1, Size::B2, Size::B4, Size::B8, Size::B8][self.below(5) as usize]
    }

    fn with(&mut self, add: impl FnOnce(Asm) -> Asm) {
        self.asm = add(std::mem::take(&mut self.asm));
    }

    fn program(&mut self) {
        let (index, at) = (self.below(3), self.below(4) * 8);
        let more = self.below(128);
        self.with(|asm| asm.mov(CONTEXT, R(1)).load(Size::B8, NUMBER, CONTEXT, at as i16).mov(5, I(0)));
        self.with(|asm| asm.add(NUMBER, I(more)));
        // An element that certainly exists, or one that may be null and is compared with null.
        if self.byte().is_multiple_of(2) {
            self.with(|asm| asm.map_value(ELEMENT, 0, index as u32 * 24));
        } else {
            self.with(|asm| {
                asm.store(Size::B4, 10, -4, I(index)).map(1, 0).mov(2, R(10)).add(2, I(-4)).call(1)
            });
            self.with(|asm| {
                asm.mov(ELEMENT, R(0)).mov(5, I(0)).branch(Cond::Eq, Width::W64, ELEMENT, I(0), "end")
            });
        }
        for slot in 1..=SLOTS {
            self.spill(slot);
        }
        for _ in 0..4 + self.byte() % 20 {
            self.step();
        }
        for slot in 1..=SLOTS {
            self.load_and_use(slot);
        }
        self.with(|asm| asm.label("end").mov(0, R(5)).exit());
        let (mask, size) = match self.slots {
            Slots::Mixed => (15, Size::B1),
            _ => (8, Size::B8),
        };
        self.with(|asm| {
            asm.label("callee").mov(0, R(2)).alu(AluOp::And, Width::W64, 0, I(mask)).add(1, R(0))
        });
        self.with(|asm| asm.store(size, 1, 0, R(3)).mov(0, I(0)).exit());
    }

    fn step(&mut self) {
        let slot = 1 + self.below(SLOTS as u8) as i16;
        match self.byte() % 11 {
            0 | 1 => self.spill(slot),
            2 | 3 => self.store_somewhere(),
            4 => self.store_at(slot),
            5 | 6 => self.load_and_use(slot),
            7 => self.atomic(slot),
            8 => self.reach(),
            9 => self.join(slot),
            _ => self.call(),
        }
    }

    /// Stores a value that the verifier follows.
    fn spill(&mut self, slot: i16) {
        let value = self.whole();
        self.with(|asm| asm.store(Size::B8, 10, -8 * slot, value));
    }

    /// Returns a value for a slot: a pointer or a number that the verifier follows.
    fn whole(&mut self) -> Src {
        let (choice, constant) = (self.below(3), self.below(16));
        let pointers = match self.slots {
            Slots::Pointers => true,
            Slots::Numbers => false,
            Slots::Mixed => self.byte().is_multiple_of(2),
        };
        match choice {
            _ if !pointers => I(constant),
            0 => R(CONTEXT),
            1 => R(ELEMENT),
            _ => {
                self.with(|asm| asm.mov(3, R(10)).add(3, I(-24)));
                R(3)
            }
        }
    }

    /// Stores to the frame at an unknown offset, which may hit every slot, or some.
    fn store_somewhere(&mut self) {
        let wide = self.slots != Slots::Mixed && !self.byte().is_multiple_of(16);
        let mask =
            if wide { [0, 8, 16, 24, 40][self.below(5) as usize] } else { MASKS[self.below(6) as usize] };
        let from = self.below(64) / 8 * 8;
        let (size, value) = self.stored();
        self.with(|asm| {
            asm.mov(4, R(NUMBER))
                .alu(AluOp::And, Width::W64, 4, I(mask))
                .mov(9, R(10))
                .add(9, I(-64 + from))
                .add(9, R(4))
                .store(size, 9, 0, value)
        });
    }

    /// Stores over a slot, wholly or in part.
    fn store_at(&mut self, slot: i16) {
        let (size, value) = self.stored();
        let anywhere = self.slots == Slots::Mixed || self.byte().is_multiple_of(16);
        let shift = if anywhere { self.below(8) as i16 } else { 0 };
        let shift = if slot == 1 { shift.min(8 - size.bytes() as i16) } else { shift };
        let frame = self.frame();
        self.with(|asm| asm.store(size, frame, -8 * slot + shift, value));
    }

    /// Returns a register with the end of the frame. The verifier does not follow some of these registers.
    fn frame(&mut self) -> u8 {
        if !self.byte().is_multiple_of(4) {
            return 10;
        }
        self.with(|asm| asm.mov(9, R(10)).add(9, R(NUMBER)).alu(AluOp::Sub, Width::W64, 9, R(NUMBER)));
        9
    }

    /// Returns a value to store over a slot, and its size.
    fn stored(&mut self) -> (Size, Src) {
        match (self.slots, self.byte() % 8) {
            (Slots::Pointers, 0) => (Size::B1, I(self.below(16))),
            (Slots::Pointers, _) => (Size::B8, self.whole()),
            (Slots::Numbers, _) => (self.size(), I(self.below(16))),
            (Slots::Mixed, 0 | 1) => (self.size(), R(NUMBER)),
            (Slots::Mixed, _) => (self.size(), self.whole()),
        }
    }

    /// Loads a slot, and uses the value as an address or as a distance.
    fn load_and_use(&mut self, slot: i16) {
        // At the ends of a region now and then.
        let far = self.byte().is_multiple_of(32);
        let (offset, size) = (if far { self.below(26) - 1 } else { self.below(5) } as i16, self.size());
        let as_number = match self.slots {
            Slots::Pointers => false,
            Slots::Numbers => true,
            Slots::Mixed => self.byte().is_multiple_of(2),
        };
        self.with(|asm| asm.load(Size::B8, 3, 10, -8 * slot));
        if as_number {
            let base = if self.byte().is_multiple_of(2) { CONTEXT } else { ELEMENT };
            self.with(|asm| asm.mov(9, R(base)).add(9, R(3)).load(size, 4, 9, 0));
        } else if far {
            self.with(|asm| asm.store(size, 3, 32, R(NUMBER)).mov(4, I(1)));
        } else {
            self.with(|asm| asm.load(size, 4, 3, offset));
        }
        self.note();
    }

    /// Adds the loaded value to the result.
    fn note(&mut self) {
        self.with(|asm| asm.alu(AluOp::Mul, Width::W64, 5, I(31)).add(5, R(4)));
    }

    fn atomic(&mut self, slot: i16) {
        let fetch = self.byte().is_multiple_of(2);
        let size = if self.byte().is_multiple_of(2) { Size::B8 } else { Size::B4 };
        let op = [AtomicOp::Add, AtomicOp::Xor, AtomicOp::Exchange][self.below(3) as usize];
        let fetch = fetch || op == AtomicOp::Exchange;
        // An exchange leaves a number, which is no address.
        let op = if self.slots == Slots::Pointers { AtomicOp::Add } else { op };
        let mask = if self.slots == Slots::Mixed { -1 } else { 3 };
        self.with(|asm| asm.mov(4, R(NUMBER)).alu(AluOp::And, Width::W64, 4, I(mask)));
        let frame = self.frame();
        self.with(|asm| asm.atomic(op, fetch, size, frame, -8 * slot, 4));
        self.note();
    }

    /// Accesses memory near an end of a region, at an offset with known bounds.
    fn reach(&mut self) {
        let (mask, size) = ([1, 7, 15, 31, 63][self.below(5) as usize], self.size());
        let (base, span) = [(CONTEXT, 64), (ELEMENT, 24)][self.below(2) as usize];
        let offset = span - mask - size.bytes() as i32 + self.below(3) - 1;
        self.with(|asm| {
            asm.mov(4, R(NUMBER)).alu(AluOp::And, Width::W64, 4, I(mask)).mov(9, R(base)).add(9, R(4))
        });
        if self.byte().is_multiple_of(2) {
            self.with(|asm| asm.load(size, 4, 9, offset as i16));
            self.note();
        } else {
            self.with(|asm| asm.store(size, 9, offset as i16, R(NUMBER)));
        }
    }

    /// Changes a slot in one branch and not in the other.
    fn join(&mut self, slot: i16) {
        let Some(label) = JOINS.get(self.labels).copied() else { return };
        self.labels += 1;
        let bit = 1 << self.below(6);
        self.with(|asm| asm.branch(Cond::Set, Width::W64, NUMBER, I(bit), label));
        match self.byte() % 2 {
            0 => self.spill(slot),
            _ => self.store_at(slot),
        }
        self.with(|asm| asm.label(label));
    }

    /// Calls a function that stores into the frame of its caller.
    fn call(&mut self) {
        let from = if self.slots == Slots::Mixed { self.below(48) } else { self.below(6) * 8 };
        let value = self.whole();
        self.with(|asm| {
            // A call leaves nothing in r1 to r5.
            asm.store(Size::B8, 10, -72, R(5))
                .mov(3, value)
                .mov(1, R(10))
                .add(1, I(-64 + from))
                .mov(2, R(NUMBER))
                .call_local("callee")
                .load(Size::B8, 5, 10, -72)
        });
    }
}

/// Unknown bits of offsets.
const MASKS: [i32; 6] = [0, 7, 8, 15, 24, 31];

/// Labels at which branches meet again.
const JOINS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// Slots of 8 bytes in the frame that values are stored in.
const SLOTS: i16 = 6;
