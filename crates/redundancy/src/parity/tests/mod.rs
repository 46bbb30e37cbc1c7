//! Tests of arrays.
