// Package hostile holds nothing but tests: attacks on real bottles, made
// through the public API as anybody would use it. docs/promises.md says which
// test tries to break which promise.
//
// The attacks run inside, in the guest (guest_test.go), which is this test
// binary again. Each says by its name what it tries; it must fail there, while
// its nearest neighbour, which looks much the same and is allowed, must work.
package hostile
