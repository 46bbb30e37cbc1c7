//! Calls: helpers, functions of the program, and the few helpers that are generated inline.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value};

use super::access::in_frame;
use super::lower::{I64, Lower, Unit, signature, trusted};
use super::runtime;
use crate::error::Fault;
use crate::helpers::{self, Helper};
use crate::insn::Reg;
use crate::layout::{FRAME_BYTES, Region, STACK_BYTES};
use crate::maps::{Map, MapError, MapKind};
use crate::trace::COUNTERS;
use crate::verify::Proof;

impl Lower<'_, '_> {
    /// Emits a call of the code at an address. Returns its two results.
    fn call_address(&mut self, function: Value, arguments: &[Value]) -> (Value, Value) {
        let signature = self.b.import_signature(signature(self.call_conv, arguments.len()));
        let call = self.b.ins().call_indirect(signature, function, arguments);
        let results = self.b.inst_results(call);
        (results[0], results[1])
    }

    /// Emits a call of a function of the host that may fail.
    pub(super) fn checked_call(&mut self, function: usize, arguments: &[Value]) -> Value {
        let function = self.number(function as u64);
        let (value, fault) = self.call_address(function, arguments);
        // A trap is the instruction above the fault; the fault alone shows whether there is one.
        let trap = self.b.ins().bor_imm(fault, (self.at as i64) << 8);
        self.leave_if(fault, trap);
        value
    }

    pub(super) fn call_helper(&mut self, number: u32) {
        let helper = self.all.helpers.get(self.at).and_then(Option::as_ref);
        let result = match (helper, number) {
            (Some(helper), helpers::MAP_LOOKUP) if helper.is_standard() => self.lookup(),
            (Some(helper), helpers::COUNT) if helper.is_standard() => self.count(),
            (Some(helper), _) => self.any_helper(helper),
            // Helpers are resolved before code is generated.
            (None, _) => self.number(0),
        };
        self.set(Reg::RETURN, result);
        self.clear_arguments();
    }

    fn any_helper(&mut self, helper: &Helper) -> Value {
        let helper = self.number(std::ptr::from_ref(helper).addr() as u64);
        let mut arguments = vec![self.machine, helper];
        arguments.extend(Reg::arguments().map(|reg| self.get(reg)));
        self.checked_call(runtime::call_helper as *const () as usize, &arguments)
    }

    fn clear_arguments(&mut self) {
        let zero = self.number(0);
        for reg in Reg::arguments() {
            self.set(reg, zero);
        }
    }

    fn lookup(&mut self) -> Value {
        let memory = self.all.source.memory;
        if let Proof::Map { map, key: Some(key) } = *self.proof()
            && let Some(found) = memory.maps.get(map as usize)
            && matches!(found.def().key_size, 4 | 8)
            && in_frame(key, found.def().key_size as usize)
        {
            let key = match found.def().key_size {
                4 => self.b.ins().uload32(trusted(), self.frame, key as i32),
                _ => self.b.ins().load(I64, trusted(), self.frame, key as i32),
            };
            match found.def().kind {
                MapKind::Array => return self.element(map, found, key),
                MapKind::Hash | MapKind::LruHash => {
                    let address = self.number(std::ptr::from_ref::<Map>(found).addr() as u64);
                    let map = self.number(map.into());
                    return self.checked_call(
                        runtime::hash_lookup as *const () as usize,
                        &[self.machine, address, map, key],
                    );
                }
                MapKind::Translation => {}
            }
        }
        let (handle, key) = (self.get(Reg::arguments()[0]), self.get(Reg::arguments()[1]));
        self.checked_call(runtime::map_lookup as *const () as usize, &[self.machine, handle, key])
    }

    /// Emits the address of an element of an array, or zero.
    fn element(&mut self, number: u32, map: &Map, index: Value) -> Value {
        let def = map.def();
        let inside = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, index, i64::from(def.max_entries));
        let offset = self.b.ins().imul_imm(index, def.stride() as i64);
        let address = self.b.ins().iadd_imm(offset, Region::Map(number).base() as i64);
        let zero = self.number(0);
        let element = self.b.ins().select(inside, address, zero);
        self.found = Some((element, inside));
        element
    }

    /// Emits `sluice_count`: an increment, or an error for a counter that does not exist.
    fn count(&mut self) -> Value {
        let index = self.get(Reg::arguments()[0]);
        let (fine, error) = (0, MapError::Invalid.errno());
        // Most programs name their counters by constants, for which no check is left.
        match self.constant(index) {
            Some(index) if index < COUNTERS as u64 => {
                let at = self.all.source.memory.counters.base().addr() as u64 + index * 8;
                let counter = self.number(at);
                self.count_up(counter);
                return self.number(fine);
            }
            Some(_) => return self.number(error),
            None => {}
        }
        let exists = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, index, COUNTERS as i64);
        let (count, wrong, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.append_block_param(done, I64);
        self.b.ins().brif(exists, count, &[], wrong, &[]);
        self.b.switch_to_block(count);
        // Also where a processor speculates that it exists.
        let zero = self.number(0);
        let index = self.b.ins().select_spectre_guard(exists, index, zero);
        let base = self.number(self.all.source.memory.counters.base().addr() as u64);
        let offset = self.b.ins().ishl_imm(index, 3);
        let counter = self.b.ins().iadd(base, offset);
        self.count_up(counter);
        let fine = self.number(fine);
        self.b.ins().jump(done, &[fine.into()]);
        self.b.switch_to_block(wrong);
        let error = self.number(error);
        self.b.ins().jump(done, &[error.into()]);
        self.b.switch_to_block(done);
        self.b.block_params(done)[0]
    }

    fn count_up(&mut self, counter: Value) {
        let value = self.b.ins().load(I64, trusted(), counter, 0);
        let value = self.b.ins().iadd_imm(value, 1);
        self.b.ins().store(trusted(), value, counter, 0);
    }

    pub(super) fn call_local(&mut self, target: usize) {
        self.charge(self.all.source.code.call_cost(target));
        let deepest = (STACK_BYTES - FRAME_BYTES) as i64;
        let deep = self.b.ins().icmp_imm(IntCC::UnsignedGreaterThan, self.frame_end, deepest);
        self.trap_if(deep, Fault::TooDeep);
        let unit = self.all.units.iter().position(|unit| *unit == Unit::Function(target));
        let Some(place) = unit.and_then(|unit| self.all.functions.get(unit)) else { return };
        let place = self.number(place.as_ptr().addr() as u64);
        let function = self.b.ins().load(I64, trusted(), place, 0);
        // Also where a processor speculates that there is another frame.
        let zero = self.number(0);
        let frame_end = self.b.ins().select_spectre_guard(deep, zero, self.frame_end);
        let frame_end = self.b.ins().iadd_imm(frame_end, FRAME_BYTES as i64);
        let mut arguments = vec![self.machine, frame_end];
        arguments.extend(Reg::arguments().map(|reg| self.get(reg)));
        let (value, trap) = self.call_address(function, &arguments);
        self.leave_if(trap, trap);
        self.set(Reg::RETURN, value);
        self.clear_arguments();
    }
}
