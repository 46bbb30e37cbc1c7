//! ABI in the header for C and in the module for Python, compared with the real one.

use sluice_uif::Status;
use sluice_uif::abi::*;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

/// Returns numbers with their names in C and in Python (or an empty one).
fn numbers() -> Vec<(&'static str, &'static str, u64)> {
    vec![
        ("SLUICE_UIF_VERSION", "VERSION", VERSION as _),
        ("SLUICE_UIF_MAGIC", "MAGIC", MAGIC as _),
        ("SLUICE_ENTRY_BYTES", "ENTRY_BYTES", ENTRY_BYTES as _),
        ("SLUICE_ENTRIES_MAX", "ENTRIES_MAX", ENTRIES_MAX as _),
        ("SLUICE_REQUESTS_MAX", "REQUESTS_MAX", REQUESTS_MAX as _),
        ("SLUICE_DATA_MAX", "DATA_MAX", DATA_MAX as _),
        ("SLUICE_LAYERS_MAX", "LAYERS_MAX", LAYERS_MAX as _),
        ("SLUICE_OPTIONS_MAX", "OPTIONS_MAX", OPTIONS_MAX as _),
        ("SLUICE_WORDS_MAX", "WORDS_MAX", WORDS_MAX as _),
        ("SLUICE_CONTROL_BYTES", "CONTROL_BYTES", CONTROL_BYTES as _),
        ("SLUICE_INDEX_TAIL", "INDEX_TAIL", index::TAIL as _),
        ("SLUICE_INDEX_EVENT", "INDEX_EVENT", index::EVENT as _),
        ("SLUICE_INDEX_HEAD", "INDEX_HEAD", index::HEAD as _),
        ("SLUICE_KIND_COMMAND", "COMMAND", kind::COMMAND as _),
        ("SLUICE_KIND_RETURNED", "RETURNED", kind::RETURNED as _),
        ("SLUICE_KIND_DONE", "DONE", kind::DONE as _),
        ("SLUICE_KIND_BELOW", "BELOW", kind::BELOW as _),
        ("SLUICE_KIND_START", "START", kind::START as _),
        ("SLUICE_KIND_CONTROL", "CONTROL", kind::CONTROL as _),
        ("SLUICE_KIND_STOP", "STOP", kind::STOP as _),
        ("SLUICE_DISPOSITION_FINISH", "FINISH", disposition::FINISH as _),
        ("SLUICE_DISPOSITION_FORWARD", "FORWARD", disposition::FORWARD as _),
        (
            "SLUICE_DISPOSITION_FORWARD_AND_RETURN",
            "FORWARD_AND_RETURN",
            disposition::FORWARD_AND_RETURN as u64,
        ),
        ("SLUICE_DISPOSITION_REQUEST", "REQUEST", disposition::REQUEST as _),
        ("SLUICE_DISPOSITION_READY", "READY", disposition::READY as _),
        ("SLUICE_DISPOSITION_TRANSLATE", "TRANSLATE", disposition::TRANSLATE as _),
        ("SLUICE_TRANSLATION_INSERT", "INSERT", translation::INSERT as _),
        ("SLUICE_TRANSLATION_FORGET", "FORGET", translation::FORGET as _),
        ("SLUICE_TRANSLATION_PROTECT", "PROTECT", translation::PROTECT as _),
        ("SLUICE_READ", "READ", operation::READ as _),
        ("SLUICE_WRITE", "WRITE", operation::WRITE as _),
        ("SLUICE_FLUSH", "FLUSH", operation::FLUSH as _),
        ("SLUICE_WRITE_ZEROES", "WRITE_ZEROES", operation::WRITE_ZEROES as _),
        ("SLUICE_DEALLOCATE", "DEALLOCATE", operation::DEALLOCATE as _),
        ("SLUICE_OPERATIONS", "OPERATIONS", operation::COUNT as _),
        ("SLUICE_FLAG_FUA", "FUA", flag::FUA as _),
        ("SLUICE_FLAG_DEALLOCATE", "MAY_DEALLOCATE", flag::DEALLOCATE as _),
        ("SLUICE_FLAG_QUIET", "QUIET", flag::QUIET as _),
        ("SLUICE_FLAG_NEW", "NEW", flag::NEW as _),
        ("SLUICE_SUCCESS", "SUCCESS", Status::SUCCESS.0 as _),
        ("SLUICE_INVALID_FIELD", "INVALID_FIELD", Status::INVALID_FIELD.0 as _),
        ("SLUICE_INTERNAL_ERROR", "INTERNAL_ERROR", Status::INTERNAL_ERROR.0 as _),
        (
            "SLUICE_NAMESPACE_WRITE_PROTECTED",
            "NAMESPACE_WRITE_PROTECTED",
            Status::NAMESPACE_WRITE_PROTECTED.0 as u64,
        ),
        ("SLUICE_LBA_OUT_OF_RANGE", "LBA_OUT_OF_RANGE", Status::LBA_OUT_OF_RANGE.0 as _),
        ("SLUICE_CAPACITY_EXCEEDED", "CAPACITY_EXCEEDED", Status::CAPACITY_EXCEEDED.0 as _),
        ("SLUICE_NAMESPACE_NOT_READY", "NAMESPACE_NOT_READY", Status::NAMESPACE_NOT_READY.0 as _),
        ("SLUICE_WRITE_FAULT", "WRITE_FAULT", Status::WRITE_FAULT.0 as _),
        ("SLUICE_UNRECOVERED_READ_ERROR", "UNRECOVERED_READ_ERROR", Status::UNRECOVERED_READ_ERROR.0 as _),
    ]
}

/// Returns the offset of every field, and the length of each structure.
fn fields() -> Vec<(&'static str, u64)> {
    vec![
        ("sizeof(struct sluice_abi_header)", size_of::<Header>() as _),
        ("offsetof(struct sluice_abi_header, magic)", offset_of!(Header, magic) as _),
        ("offsetof(struct sluice_abi_header, version)", offset_of!(Header, version) as _),
        ("offsetof(struct sluice_abi_header, entries)", offset_of!(Header, entries) as _),
        ("offsetof(struct sluice_abi_header, arena_bytes)", offset_of!(Header, arena_bytes) as _),
        ("sizeof(struct sluice_abi_submission)", size_of::<Submission>() as _),
        ("offsetof(struct sluice_abi_submission, tag)", offset_of!(Submission, tag) as _),
        ("offsetof(struct sluice_abi_submission, operation)", offset_of!(Submission, operation) as _),
        ("offsetof(struct sluice_abi_submission, flags)", offset_of!(Submission, flags) as _),
        ("offsetof(struct sluice_abi_submission, kind)", offset_of!(Submission, kind) as _),
        ("offsetof(struct sluice_abi_submission, stage)", offset_of!(Submission, stage) as _),
        ("offsetof(struct sluice_abi_submission, status)", offset_of!(Submission, status) as _),
        ("offsetof(struct sluice_abi_submission, offset)", offset_of!(Submission, offset) as _),
        ("offsetof(struct sluice_abi_submission, length)", offset_of!(Submission, length) as _),
        ("offsetof(struct sluice_abi_submission, data_offset)", offset_of!(Submission, data_offset) as _),
        ("offsetof(struct sluice_abi_submission, data_length)", offset_of!(Submission, data_length) as _),
        ("offsetof(struct sluice_abi_submission, cookie)", offset_of!(Submission, cookie) as _),
        ("sizeof(struct sluice_abi_reply)", size_of::<Reply>() as _),
        ("offsetof(struct sluice_abi_reply, tag)", offset_of!(Reply, tag) as _),
        ("offsetof(struct sluice_abi_reply, disposition)", offset_of!(Reply, disposition) as _),
        ("offsetof(struct sluice_abi_reply, operation)", offset_of!(Reply, operation) as _),
        ("offsetof(struct sluice_abi_reply, flags)", offset_of!(Reply, flags) as _),
        ("offsetof(struct sluice_abi_reply, stage)", offset_of!(Reply, stage) as _),
        ("offsetof(struct sluice_abi_reply, status)", offset_of!(Reply, status) as _),
        ("offsetof(struct sluice_abi_reply, layer)", offset_of!(Reply, layer) as _),
        ("offsetof(struct sluice_abi_reply, offset)", offset_of!(Reply, offset) as _),
        ("offsetof(struct sluice_abi_reply, length)", offset_of!(Reply, length) as _),
        ("offsetof(struct sluice_abi_reply, cookie)", offset_of!(Reply, cookie) as _),
        ("offsetof(struct sluice_abi_reply, data_offset)", offset_of!(Reply, data_offset) as _),
        ("sizeof(struct sluice_abi_hello)", size_of::<Hello>() as _),
        ("offsetof(struct sluice_abi_hello, magic)", offset_of!(Hello, magic) as _),
        ("offsetof(struct sluice_abi_hello, version)", offset_of!(Hello, version) as _),
        ("offsetof(struct sluice_abi_hello, options)", offset_of!(Hello, options) as _),
        ("offsetof(struct sluice_abi_hello, rings_bytes)", offset_of!(Hello, rings_bytes) as _),
        ("offsetof(struct sluice_abi_hello, arena_bytes)", offset_of!(Hello, arena_bytes) as _),
        ("sizeof(struct sluice_abi_welcome)", size_of::<Welcome>() as _),
        ("offsetof(struct sluice_abi_welcome, magic)", offset_of!(Welcome, magic) as _),
        ("offsetof(struct sluice_abi_welcome, version)", offset_of!(Welcome, version) as _),
        ("offsetof(struct sluice_abi_welcome, refused)", offset_of!(Welcome, refused) as _),
        ("offsetof(struct sluice_abi_welcome, words)", offset_of!(Welcome, words) as _),
        ("offsetof(struct sluice_abi_welcome, interests)", offset_of!(Welcome, interests) as _),
        ("offsetof(struct sluice_abi_welcome, block_size)", offset_of!(Welcome, block_size) as _),
        ("offsetof(struct sluice_abi_welcome, scratch)", offset_of!(Welcome, scratch) as _),
        ("offsetof(struct sluice_abi_welcome, transforms)", offset_of!(Welcome, transforms) as _),
        ("offsetof(struct sluice_abi_welcome, pool)", offset_of!(Welcome, pool) as _),
        ("offsetof(struct sluice_abi_welcome, size)", offset_of!(Welcome, size) as _),
    ]
}

#[test]
fn the_header_for_c_has_the_numbers_that_are() {
    let mut asserts =
        String::from("#include <stddef.h>\n#include \"sluice_uif.h\"\n#include \"sluice_uif_abi.h\"\n");
    let named = numbers().into_iter().map(|(c, _, number)| (c, number));
    for (expression, number) in named.chain(fields()) {
        writeln!(asserts, "_Static_assert({expression} == {number}u, \"{expression}\");").expect("a string");
    }
    let source = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&source, asserts).expect("room on the disk");
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-std=c11", "-fsyntax-only", "-I"]).arg(crate::sdk().join("c")).arg(source);
    assert!(compiler.status().expect("cc is there").success(), "the header is not what abi.rs is");
}

#[test]
fn the_module_for_python_has_them_too() {
    let mut asserts = String::from("from sluice_uif import abi\n");
    for (_, name, number) in numbers() {
        writeln!(asserts, "assert abi.{name} == {number}, '{name}'").expect("a string");
    }
    let lengths = [
        ("HEADER", size_of::<Header>()),
        ("SUBMISSION", size_of::<Submission>()),
        ("REPLY", size_of::<Reply>()),
        ("HELLO", size_of::<Hello>()),
        ("WELCOME", size_of::<Welcome>()),
    ];
    for (name, length) in lengths {
        writeln!(asserts, "assert abi.{name}.size == {length}, '{name}'").expect("a string");
    }
    let mut python = Command::new("python3");
    let python = python.arg("-c").arg(asserts).env("PYTHONPATH", crate::sdk().join("python"));
    assert!(python.status().expect("python3 is there").success(), "the module is not what abi.rs is");
}
