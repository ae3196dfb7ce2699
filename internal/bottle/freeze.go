package bottle

import (
	"context"
	"os"
)

// Freezer is a Bottle whose processes can be kept on disk and brought back by
// another Create of the same Backend, build and kind of processor.
type Freezer interface {
	// Freeze writes all that lives in the bottle (processes, memory, files) to the
	// image. Pause comes first. The bottle is at its end when Freeze returns nil; on
	// an error it stands still, Export still works, and the image is worth nothing.
	// Frozen is what Spec.Thaw has to say of it. Connections do not live on; of open
	// files of the host only the command's own streams do, not those of guests.
	Freeze(ctx context.Context, image ImageFiles) (Frozen, error)
	// Thawed is the command of a bottle that was made with Spec.Thaw. No system call
	// of anything inside has been served before it is called. Once.
	Thawed(ctx context.Context) (Process, error)
}

// ImageFiles are the files of an image, opened for writing by Freeze's caller and
// for reading by Create's.
type ImageFiles struct{ State, PagesMeta, Pages *os.File }

// Files are all of them.
func (f ImageFiles) Files() []*os.File { return []*os.File{f.State, f.PagesMeta, f.Pages} }

// Frozen is what must be known of an image beside its files. It holds nothing that
// is secret.
type Frozen struct {
	ID  string `json:"id"` // Spec.ID, which the thawed bottle has again
	PID int32  `json:"pid"`
	// Limits are those that it was made with: some are in the processes themselves,
	// and stay. Memory, pids and time are Spec.Limits' again.
	Limits   Limits `json:"limits"`
	Terminal bool   `json:"terminal"`
	// Streams are the backend's names of the streams in which the command's standard
	// ones are found: for each of 0, 1 and 2.
	Streams [3][]int `json:"streams"`
}

// Thaw has Create bring back what Freeze wrote. The files belong to the Backend.
type Thaw struct {
	Frozen
	Image                 ImageFiles
	Stdin, Stdout, Stderr *os.File // as in Command
}

// Files are all that Create takes over.
func (t *Thaw) Files() []*os.File {
	if t == nil {
		return nil
	}
	var out []*os.File
	for _, f := range append(t.Image.Files(), t.Stdin, t.Stdout, t.Stderr) {
		if f != nil {
			out = append(out, f)
		}
	}
	return out
}
