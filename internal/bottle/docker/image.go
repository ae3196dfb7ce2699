package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/carboy/carboy/internal/dockerapi"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/safetext"
)

const (
	imageName  = "carboy-guest"
	imageLabel = "dev.carboy.guest"
	guestPath  = "/carboy-guest"
	// stagePath names an empty directory of the image. The bottle's own root is put
	// together there.
	stagePath = volumePath + "/stage"
)

// guestImage returns the name of the image that holds the guest program and nothing else,
// and makes it if the Engine has not got it. All bottles share it.
func (e *engine) guestImage(ctx context.Context) (string, error) {
	digest, err := program.Digest()
	if err != nil {
		return "", err
	}
	ref := imageName + ":" + digest[:32]
	if err := e.call(ctx, http.MethodGet, "/images/"+ref+"/json", nil, nil, nil); !dockerapi.Gone(err) {
		return ref, err
	}
	bin, err := program.Binary()
	if err != nil {
		return "", err
	}
	text, err := tarOf(bin)
	if err == nil {
		err = e.makeImage(ctx, text)
	}
	if err != nil {
		return "", fmt.Errorf("make the guest's image: %w", err)
	}
	return ref, e.dropOldImages(ctx, digest)
}

// makeImage makes the image of this build from its files, a tar.
func (e *engine) makeImage(ctx context.Context, text []byte) error {
	digest, err := program.Digest()
	if err != nil {
		return err
	}
	q := url.Values{"fromSrc": {"-"}, "repo": {imageName}, "tag": {digest[:32]}, "changes": {"LABEL " + imageLabel + "=" + digest}}
	resp, err := e.client.Do(ctx, http.MethodPost, e.api+"/images/create?"+q.Encode(), "application/x-tar", bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// The answer is a stream of lines; an error is one of them.
	for d := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)); ; {
		var line struct{ Error string }
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if line.Error != "" {
			return errors.New(safetext.String(line.Error, 500))
		}
	}
}

// dropOldImages removes the images of other builds of carboy, unless a container uses them.
func (e *engine) dropOldImages(ctx context.Context, digest string) error {
	var images []struct {
		ID     string `json:"Id"`
		Labels map[string]string
	}
	filter := url.Values{"filters": {`{"label":["` + imageLabel + `"]}`}}
	if err := e.call(ctx, http.MethodGet, "/images/json", filter, nil, &images); err != nil {
		return err
	}
	for _, i := range images {
		if i.Labels[imageLabel] != digest {
			// In use, or removed by another carboy: both are as they should be.
			_ = e.call(ctx, http.MethodDelete, "/images/"+url.PathEscape(i.ID), nil, nil, nil)
		}
	}
	return nil
}

// tarOf returns the files of an image with that guest program.
func tarOf(bin []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range []string{"dev", "etc", "proc", "sys", volumePath[1:], stagePath[1:]} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	// The bottle's user can execute it and not read it. So commands, which are that user's
	// too, cannot trace it, nor what it starts on the way to another command.
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: guestPath[1:], Mode: 0o711, Size: int64(len(bin))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(bin); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
