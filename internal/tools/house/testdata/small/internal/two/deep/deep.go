// Package deep is at the bottom.
package deep

// Name is used.
const Name = "deep"

// OldName returns nothing: its comment names what is gone.
func newName() {}

// Gone returns nothing, and others call it.
func Named() { newName() }

// siteName and path are both declared here.
const siteName, path = "", ""

// GitHub is a word with a capital inside, and so counts.
type forge struct {
	// It may begin with any other word.
	Host string
	// theHost is what this field was called.
	Port int
}
