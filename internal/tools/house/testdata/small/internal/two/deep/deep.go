// Package deep is at the bottom.
package deep

// Name is used.
const Name = "deep"
