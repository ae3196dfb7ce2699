package bottle

import (
	"context"
	"os"
	"slices"
)

// Freezes is implemented by a Backend whose bottles are Freezers.
type Freezes interface {
	// ImageNames returns the names of an image's files, in the order of Freezer.Freeze
	// and of Thaw.Image.
	ImageNames() []string
}

// Freezer is implemented by a Bottle whose processes can be saved to disk and
// restored by another Create of the same Backend, build and kind of processor.
type Freezer interface {
	// Freeze writes the bottle's state (processes, memory, files) to the image.
	// Call Pause first. After success the bottle has ended. After an error it
	// is still paused, Export still works, and the image is useless. Pass the
	// returned Frozen to Spec.Thaw. Connections are lost. Of open files of the
	// host, only the first command's streams survive.
	//
	// The caller opens the image's files for writing, one for each of the backend's
	// ImageNames.
	Freeze(ctx context.Context, image []*os.File) (Frozen, error)
	// Thawed returns the command of a bottle that was made with Spec.Thaw, and
	// lets it go on: no system call of its processes has been served before.
	// Call it once.
	Thawed(ctx context.Context) (Process, error)
}

// Frozen describes an image beside its files. It holds no secrets.
type Frozen struct {
	ID  string `json:"id"` // Spec.ID; the thawed bottle has it again
	PID int32  `json:"pid"`
	// Limits are the original ones: some are in the processes themselves and
	// stay. Memory, pids and time follow Spec.Limits again.
	Limits   Limits `json:"limits"`
	Terminal bool   `json:"terminal"`
	// Streams holds, for each of the command's standard streams 0, 1 and 2, the
	// backend's names for it.
	Streams [3][]int `json:"streams"`
}

// Thaw tells Create to restore what Freeze wrote. The Backend takes ownership
// of the files.
type Thaw struct {
	Frozen
	Image                 []*os.File // for reading, as Freeze had them
	Stdin, Stdout, Stderr *os.File   // as in Command
}

// files returns the descriptors that Create takes ownership of.
func (t *Thaw) files() []*os.File {
	if t == nil {
		return nil
	}
	var out []*os.File
	for _, f := range slices.Concat(t.Image, []*os.File{t.Stdin, t.Stdout, t.Stderr}) {
		if f != nil {
			out = append(out, f)
		}
	}
	return out
}
